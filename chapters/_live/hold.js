/* A norm to hold: a vector in space, and what LayerNorm or RMSNorm makes of it, at the reader's hand.

   <div class="hold" data-show="norm">a still picture</div>, or data-show="jacobian" for a small circle around the vector
   and its image.  norms.js computes. */
"use strict";
{
  const { make, speaker, onceAFrame, whenSeen, flat, lifted, around, degrees, minus, ACROSS, SILENT } = livePage;
  const START = {
    x: [2.2, 0.4, -0.5],
    gain: [1.5, 1, 0.5],
    bias: [0.3, 0.2, 0.4],
    eps: 1e-5,
    on: { centre: true, divide: true, gain: true, bias: false },
  };
  const SWITCHES = {
    centre: "subtract the mean",
    divide: "divide by the spread",
    gain: "gain",
    bias: "bias (0.3, 0.2, 0.4)",
  };
  const RMS = "divide by the root mean square"; // what the spread is without the subtraction
  const FARTHEST = 1e6; // that a field takes
  const NAMES = { one: "(1, 1, 1)", plane: "mean 0", first: "1", second: "2", third: "3", n: "n", y: "y", x: "x" };
  const legend = (jacobian, { centre, divide }) => {
    const start = jacobian
      ? "Around x a small circle; at the output y its image by the Jacobian, and dashed the circle’s true image."
      : "Grey disc: the plane of mean 0.";
    if (!divide) {
      return `${start} Dotted: from x ${
        centre ? "over x less its mean " : ""
      }to the output y. Without a division nothing bounds the outputs.`;
    }
    if (!centre) {
      return `${start} Grey circles: of the sphere on which n lies for ε = 0. Blue: circles of the ellipsoid within which all outputs lie; dashed, LayerNorm’s slice of it. Dotted: from x over n to y.`;
    }
    const axes = jacobian ? "" : ", and its semi-axes";
    return `${start} Grey circle: where n lies for ε = 0. Blue: the ellipse within which all outputs lie, on its rim for ε = 0${axes}. Dotted: from x over x less its mean and n to the output y.`;
  };
  const HINT =
    "Drag x; drag beside it to turn. With the keyboard: arrows, Page Up and Page Down along (1, 1, 1), Shift with arrows to turn, Home to put x back.";
  const SMALL = 0.4; // radius of the circle around x
  const TURN = 0.5; // of the picture, at first

  // To try, what is set up for it, and what one should see.
  const QUESTIONS = {
    norm: [
      [
        "Move x up and down, along (1, 1, 1). What does the output do?",
        { x: [1.6, -0.8, -1.1] },
        "Nothing. A multiple of (1, 1, 1) changes the mean, and with it the angle; the mean is subtracted. Switch “subtract the mean” off, and the output moves.",
      ],
      [
        "Make x longer, then shorter. When does n leave the circle?",
        { x: [0.3, 0, -0.3], eps: 0.1 },
        "When the spread of x is no longer large beside √ε: then ε decides, n is shorter than √3, and the output comes in from the ellipse towards the centre.",
      ],
      [
        "Set one gain to 0. What is left of the ellipse?",
        { gain: [1.5, 1, 0] },
        "It lies flat in the plane of the axes 1 and 2. The third entry of the output is 0, or its bias if that is on, whatever x is, and yet neither semi-axis becomes 0: the third entry of n is minus the sum of the others.",
      ],
      ["Set two gains to 0. What is left?", { gain: [1.5, 0, 0] }, "A segment: one semi-axis is 0."],
      [
        "Change the sign of a gain. Do the semi-axes change?",
        { gain: [1.5, -1, 0.5] },
        "No. The ellipse is mirrored along the axis 2; its semi-axes depend on the squares of the gains alone.",
      ],
      [
        "Without the subtraction, where can outputs be?",
        { on: { centre: false } },
        "On a whole ellipsoid with semi-axes √3·|γ|: that is RMSNorm. Turn it. LayerNorm’s outputs are one slice of it, dashed.",
      ],
    ],
    jacobian: [
      [
        "Move x outwards, away from (1, 1, 1). What becomes of the image of the small circle?",
        { x: [0.6, 0, -0.6] },
        "It shrinks as 1 over the spread, where ε is small beside its square: the same step moves the output of a longer vector less.",
      ],
      [
        "Why is the image of a circle a segment?",
        { x: [0.9, -0.1, -0.8] },
        "The circle lies in the plane of the axes 1 and 2. The norm loses two directions of three, (1, 1, 1) and n: what is left of a step is its part across both. Only ε lets a little of n through.",
      ],
      [
        "Make ε large. What changes?",
        { x: [0.6, 0, -0.6], eps: 0.3 },
        "The segment gets a width: where ε decides, the norm no longer forgets the length of x. If ε is larger still, all of the image shrinks: the norm divides by √ε.",
      ],
      [
        "How far do the image by the Jacobian and the circle's true image lie apart?",
        { x: [0.5, 0, -0.4], eps: 1e-5 },
        "The dashed outline is the true image: it is bent along the ellipse where the circle is not small beside the spread; farther out the two are one.",
      ],
      [
        "Switch the subtraction off. What becomes of the image?",
        { on: { centre: false } },
        "RMSNorm loses one direction of three, that of x: the image is an ellipse, unless x lies in the plane of the small circle.",
      ],
    ],
  };

  // Of the ellipse in three dimensions: over d, the squared semi-axes are the zeros of p′, p the polynomial whose zeros
  // are the squared gains (thm-critical-points); without centring they are the squared gains.
  const semiAxes = (gain, centre) => {
    const squares = gain.map((g) => g * g);
    if (!centre) return squares.map((g) => Math.sqrt(3 * g)).sort((a, b) => b - a);
    const [a, b, c] = squares;
    const root = Math.sqrt(((a - b) ** 2 + (b - c) ** 2 + (c - a) ** 2) / 2);
    const larger = a + b + c + root; // over 3, times 3
    return [Math.sqrt(larger), larger > 0 ? Math.sqrt((3 * (a * b + b * c + c * a)) / larger) : 0];
  };

  // Ends of the semi-axes.  Of the ellipse p cos t + q sin t they are at the t at which its slope is across it.
  const principal = (bias, gain, flatly) => {
    if (!flatly) return [0, 1, 2].map((i) => bias.map((c, j) => c + (i === j) * Math.sqrt(3) * gain[i]));
    const [p, q] = ACROSS.map((e) => e.map((v, i) => Math.sqrt(3) * gain[i] * v));
    const times = (u, v) => u.reduce((sum, e, i) => sum + e * v[i], 0);
    const t = Math.atan2(2 * times(p, q), times(p, p) - times(q, q)) / 2;
    return [t, t + Math.PI / 2].map((t) => bias.map((c, i) => c + Math.cos(t) * p[i] + Math.sin(t) * q[i]));
  };

  // All that is shown, from what the reader has set.
  const compute = ({ x, gain, bias, eps, on }) => {
    const g = on.gain ? gain : [1, 1, 1];
    const b = on.bias ? bias : [0, 0, 0];
    const options = { gain: g, bias: b, eps, centre: on.centre, divide: on.divide };
    const { mean, s, n, y } = normgeom.norm(x, options);
    const spread = Math.hypot(...x.map((v) => v - mean)) / Math.sqrt(3);
    const { angle } = normgeom.look(x);
    const circle = around([0, 0, 0], SMALL, FIRST_TWO);
    return {
      ...{ mean, spread, s, n, y, gain: g, bias: b, options, angle, length: Math.hypot(...n) },
      axes: on.divide ? semiAxes(g, on.centre) : [],
      ends: on.divide ? principal(b, g, on.centre) : [],
      image: on.divide ? circle.map((v) => plus(normgeom.jacobianTimes(v, { n, s }, options), y)) : [],
      true_image: on.divide ? circle.map((v) => normgeom.norm(plus(v, x), options).y) : [],
    };
  };

  const plus = (u, v) => u.map((e, i) => e + v[i]);
  const FIRST_TWO = [[1, 0, 0], [0, 1, 0]]; // the small circle lies in the plane of the first two coordinates
  globalThis.normgeom.held = compute;

  const SCALE = 62; // pixels of a unit: with gains of 2 outputs stay inside
  const DISC = 2.3; // radius of what is shown of the plane
  const AXIS = 1.7; // length of what is shown of the coordinate axes
  const [WIDE, HIGH] = [300, 217]; // where a point stays that lies outside of the picture
  const inside = ([left, top]) => [Math.max(-WIDE, Math.min(WIDE, left)), Math.max(-HIGH, Math.min(HIGH, top))];
  const number = (v) => {
    const exact = Math.abs(v) >= 1e-12 && (Math.abs(v) < 0.01 || Math.abs(v) >= 1e4);
    return minus(exact ? v.toExponential(1) : v.toFixed(2).replace(/^-(0\.00)$/, "$1"));
  };

  const setUp = (host) => {
    const jacobian = host.dataset.show === "jacobian";
    const state = structuredClone(START);
    let [turn, home] = [TURN, START.x];
    host.replaceChildren();
    const [seen, set] = ["seen", "set"].map((name) => make(host, "div", { class: `live-${name}` }));
    const svg = make(seen, "svg", { viewBox: "-320 -235 640 470", role: "group" });
    const LAYERS = [
      "disc",
      "coordinates",
      "sphere",
      "slice",
      "one",
      "ring",
      "image",
      "axes",
      "way",
      "small",
      "small-true",
    ];
    const layers = Object.fromEntries(LAYERS.map((name) => [name, make(svg, "path", { class: name })]));
    const dots = Object.fromEntries(
      ["n", "y", "x"].map((
        name,
      ) => [name, make(svg, "circle", { class: `dot ${name}`, r: name === "x" ? 8 : jacobian ? 3.5 : 5 })]),
    );
    const names = Object.fromEntries(
      Object.entries(NAMES).map(([name, words]) => [name, make(svg, "text", { class: `name-${name}` }, words)]),
    );
    const handle = make(svg, "circle", { class: "handle", r: 24, tabindex: 0, role: "slider", "aria-valuenow": 0 });
    handle.setAttribute("aria-label", `The vector x. ${HINT}`);
    const numbers = make(seen, "p", { class: "live-numbers" });
    const warning = make(set, "p", { class: "live-warning", role: "alert" });
    const speak = speaker(host);
    const rows = ["x", "gain", "switches"].map(() => make(set, "div", { class: "live-row" }));

    const inputs = [];
    const field = (row, label, attributes, read, write, say = number) => {
      const wrap = make(row, "label", {}, `${label} `);
      const input = make(wrap, "input", attributes);
      const said = attributes.type === "range" ? make(wrap, "output", SILENT) : null;
      if (said) input.setAttribute("aria-label", label);
      input.addEventListener("input", () => {
        const value = attributes.type === "checkbox" ? input.checked : input.value === "" ? NaN : Number(input.value);
        const wrong = typeof value === "number" && !(Math.abs(value) <= FARTHEST);
        input.setAttribute("aria-invalid", wrong);
        warning.textContent = wrong
          ? `${label}: expected a number from −1,000,000 to 1,000,000; what was there before stays.`
          : "";
        if (!wrong) {
          write(value);
          draw(input);
        }
      });
      inputs.push({ input, said, read, say });
      return inputs.at(-1);
    };
    const typed = { type: "number", step: 0.1 };
    const slid = { type: "range", min: -2, max: 2, step: 0.05 };
    const gains = [];
    for (const i of [0, 1, 2]) {
      field(rows[0], `x${"₁₂₃"[i]}`, typed, () => state.x[i], (v) => (state.x[i] = v));
      gains.push(field(rows[1], `γ${"₁₂₃"[i]}`, slid, () => state.gain[i], (v) => (state.gain[i] = v)));
    }
    const powers = { type: "range", min: -6, max: 0.5, step: 0.25 };
    const small = field(
      rows[1],
      "ε",
      powers,
      () => Math.log10(state.eps),
      (v) => (state.eps = 10 ** v),
      () => number(state.eps),
    );
    const switches = {};
    for (const [key, label] of Object.entries(SWITCHES)) {
      switches[key] = field(rows[2], label, { type: "checkbox" }, () => state.on[key], (v) => (state.on[key] = v));
    }
    const full = { type: "range", min: -180, max: 180, step: 5 };
    field(rows[2], "turn", full, () => degrees(turn), (v) => (turn = (v * Math.PI) / 180), (v) => `${minus(v)}°`);
    // Words that follow the switches are written when they change: while x is dragged they do not.
    const write = (node, words) => {
      if (node.textContent !== words) node.textContent = words;
    };

    make(set, "p", { class: "live-try" }, "To try:");
    const list = make(set, "ol", { class: "live-questions" });
    for (const [question, start, answer] of QUESTIONS[jacobian ? "jacobian" : "norm"]) {
      const item = make(list, "li", {}, `${question} `);
      make(item, "button", { type: "button", "aria-label": `Set up: ${question}` }, "set up").addEventListener(
        "click",
        () => {
          Object.assign(state, structuredClone({ ...START, ...start, on: { ...START.on, ...start.on } }));
          [turn, home] = [TURN, [...state.x]];
          warning.textContent = "";
          svg.scrollIntoView({ block: "nearest" });
          draw();
        },
      );
      const fold = make(item, "details", { class: "fold" });
      make(fold, "summary", {}, "what you see");
      make(fold, "p", {}, answer);
    }

    const below = make(set, "p", { class: "live-legend" });
    const explained = make(below, "span");
    make(below, "span", { class: "live-hint" }, ` ${HINT}`);

    const paint = (from) => {
      const found = compute(state);
      outlines(found);
      const to = flat(SCALE, turn);
      const rim = around([0, 0, 0], DISC).reduce((a, b) => (to(b)[0] > to(a)[0] ? b : a));
      for (
        const [name, at] of Object.entries({
          n: found.n,
          y: found.y,
          x: state.x,
          one: [1.3, 1.3, 1.3],
          plane: rim,
          first: [AXIS, 0, 0],
          second: [0, AXIS, 0],
          third: [0, 0, AXIS],
        })
      ) {
        const place = to(at);
        const [left, top] = inside(place);
        for (const dot of [dots[name], name === "x" && handle].filter(Boolean)) {
          dot.setAttribute("cx", left);
          dot.setAttribute("cy", top);
        }
        const within = left === place[0] && top === place[1];
        if (name in dots) write(names[name], within ? name : `${name}, outside`);
        names[name].setAttribute("text-anchor", within || left < 0 ? "start" : "end");
        names[name].setAttribute("x", left + (within || left < 0 ? 10 : -12));
        names[name].setAttribute("y", within || top > 0 ? top - 8 : top + 26);
      }
      write(explained, legend(jacobian, state.on));
      tell(found);
      for (const { input, said, read, say } of inputs) {
        if (input.type === "checkbox") input.checked = read();
        else if (input !== from || input.type === "range") input.value = +read().toPrecision(6);
        if (input !== from) input.setAttribute("aria-invalid", false);
        if (said) input.setAttribute("aria-valuetext", said.textContent = say(read()));
      }
      for (const { input } of gains) input.disabled = !state.on.gain;
      small.input.disabled = !state.on.divide;
      write(switches.divide.input.parentElement.firstChild, `${state.on.centre ? SWITCHES.divide : RMS} `);
    };
    const draw = onceAFrame(paint);

    const outlines = ({ mean, n, y, gain, bias, ends, image, true_image }) => {
      const to = flat(SCALE, turn);
      const line = (
        points,
        close,
      ) => (points.length
        ? `M${points.map((p) => to(p).map((v) => v.toFixed(1)).join(",")).join("L")}${close ? "Z" : ""}`
        : "");
      const outward = (v) => v.map((e, i) => gain[i] * e + bias[i]);
      const { centre, divide } = state.on;
      const E = [[1, 0, 0], [0, 1, 0], [0, 0, 1]];
      const ring = around([0, 0, 0], Math.sqrt(3));
      const balls = [[0, 1], [1, 2], [2, 0]].map(([i, j]) => around([0, 0, 0], Math.sqrt(3), [E[i], E[j]]));
      const ellipse = ring.map(outward);
      const shape = {
        disc: line(around([0, 0, 0], DISC), true),
        one: line([[-1.5, -1.5, -1.5], [1.5, 1.5, 1.5]]),
        ring: divide ? (centre ? [ring] : balls).map((c) => line(c, true)).join("") : "",
        image: divide && centre ? line(ellipse, true) : "",
        sphere: divide && !centre ? balls.map((c) => line(c.map(outward), true)).join("") : "",
        axes: !jacobian ? ends.map((p) => line([bias, p])).join("") : "",
        coordinates: FIRST_TWO.concat([[0, 0, 1]]).map((e) => line([[0, 0, 0], e.map((v) => AXIS * v)])).join(""),
        slice: divide && !centre ? line(ellipse, true) : "",
        way: line([state.x, ...(centre ? [state.x.map((v) => v - mean)] : []), n, y]),
        small: jacobian ? line(around(state.x, SMALL, FIRST_TWO), true) + line(image, true) : "",
        "small-true": jacobian ? line(true_image, true) : "",
      };
      for (const [name, d] of Object.entries(shape)) layers[name].setAttribute("d", d);
    };
    const tell = ({ mean, spread, s, angle, length, axes, y }) => {
      const parts = [
        ["mean", number(mean)],
        ["σ", number(spread)],
        ["divisor", state.on.divide ? number(s) : "none"],
        ["angle to (1, 1, 1)", Number.isNaN(angle) ? "none" : `${angle.toFixed(1)}°`],
        ["‖n‖", number(length)],
        ...(axes.length ? [["semi-axes", axes.map(number).join(" and ")]] : []),
        ["output", `(${y.map(number).join(", ")})`],
      ];
      numbers.replaceChildren();
      for (const [name, value] of parts) {
        const pair = make(numbers, "span", {}, `${name} `);
        make(pair, "b", {}, value);
      }
      const words = parts.map((pair) => pair.join(" ")).join("; ");
      svg.setAttribute("aria-label", `x is (${state.x.map(number).join(", ")}); ${words}.`);
      handle.setAttribute("aria-valuetext", `(${state.x.map(number).join(", ")})`);
      speak(
        `Output (${y.map(number).join(", ")}); mean ${number(mean)}, length of n ${number(length)}${
          axes.length ? `, semi-axes ${axes.map(number).join(" and ")}` : ""
        }.`,
      );
    };

    let dragged;
    svg.addEventListener("pointerdown", (event) => {
      if (event.target !== handle && event.pointerType === "mouse" && event.button) return;
      dragged = { what: event.target === handle ? "x" : "view", at: [event.clientX, event.clientY] };
      svg.setPointerCapture(event.pointerId);
    });
    svg.addEventListener("pointermove", (event) => {
      if (!dragged) return;
      const unit = 640 / svg.getBoundingClientRect().width;
      const [right, down] = [event.clientX - dragged.at[0], event.clientY - dragged.at[1]].map((v) => v * unit);
      dragged.at = [event.clientX, event.clientY];
      if (dragged.what === "view") turn += right / 160;
      else state.x = plus(state.x, lifted(SCALE, turn, right, down));
      draw();
    });
    for (const over of ["pointerup", "pointercancel"]) svg.addEventListener(over, () => (dragged = undefined));
    const KEYS = { ArrowLeft: [-6, 0], ArrowRight: [6, 0], ArrowUp: [0, -6], ArrowDown: [0, 6] };
    const TURNS = { ArrowLeft: -0.1, ArrowRight: 0.1 };
    const ALONG = { PageUp: 0.1, PageDown: -0.1 };
    handle.addEventListener("keydown", (event) => {
      if (event.shiftKey && event.key in TURNS) {
        event.preventDefault();
        turn += TURNS[event.key];
        return draw();
      }
      const step = KEYS[event.key]
        ? lifted(SCALE, turn, ...KEYS[event.key])
        : event.key in ALONG && [1, 1, 1].map(() => ALONG[event.key]);
      if (!step && event.key !== "Home") return;
      event.preventDefault();
      if (!step) turn = TURN;
      warning.textContent = "";
      state.x = step ? plus(state.x, step).map((v) => Math.max(-FARTHEST, Math.min(FARTHEST, v))) : [...home];
      draw();
    });
    host.live = { state };
    paint();
  };

  whenSeen(".hold", setUp);
}
