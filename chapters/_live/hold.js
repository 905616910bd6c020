/* An interactive norm: a vector in space that the reader moves, and its output under LayerNorm or RMSNorm.

   <div class="hold" data-show="norm">a still picture</div>, or data-show="jacobian" for a small circle around the vector
   and its image.  norms.js does the computation. */
"use strict";
{
  const { make, speaker, questions, label, onceAFrame, whenSeen, minus, SILENT } = livePage;
  const { flat, lifted, around, degrees, ACROSS } = livePage;
  const START = {
    x: [2.2, 0.4, -0.5],
    gain: [1.5, 1, 0.5],
    bias: [0.3, 0.2, 0.4],
    eps: 1e-5,
    on: { centre: true, divide: true, gain: true, bias: false },
  };
  const SWITCHES = {
    centre: "subtract the mean",
    divide: "divide by σ",
    gain: "gain",
    bias: "bias (0.3, 0.2, 0.4)",
  };
  const RMS = "divide by the root mean square"; // replaces SWITCHES.divide without the subtraction
  const FARTHEST = 1e6; // largest absolute value that a field accepts
  const NAMES = { one: "(1, 1, 1)", plane: "mean 0", first: "e₁", second: "e₂", third: "e₃", n: "n", y: "y", x: "x" };
  const legend = (jacobian, { centre, divide }) => {
    const start = jacobian
      ? "A small circle around x; at the output y, its image under the Jacobian and, green and dashed, its true image."
      : "Grey disc: the plane of mean 0.";
    if (!divide) {
      return `${start} Dotted: the path from x ${
        centre ? "through x minus its mean " : ""
      }to the output y. Without the division, the outputs are unbounded.`;
    }
    if (!centre) {
      return `${start} Grey circles: the sphere on which n lies if ε = 0. Blue: the ellipsoid that contains all outputs; orange, dashed: LayerNorm’s slice of it. Dotted: the path from x through n to y.`;
    }
    const axes = jacobian ? "" : " and its semi-axes";
    return `${start} Grey circle: where n lies if ε = 0. Orange: the ellipse that contains all outputs${axes}; if ε = 0, outputs lie on its rim. Dotted: the path from x through x minus its mean and n to the output y.`;
  };
  const DRAG = "Drag x, or drag the background to turn the picture.";
  const KEYBOARD =
    "Keyboard: arrow keys move x, Page Up and Page Down move it along (1, 1, 1), Shift with an arrow key turns the picture, and Home returns x to its start.";
  const SMALL = 0.4; // radius of the circle around x
  const TURN = 0.5; // initial angle of the picture, in radians

  // For questions() of page.js.
  const QUESTIONS = {
    front: [
      {
        ask: "Drag x straight up, along (1, 1, 1). What will happen to the output y?",
        guesses: ["It moves up", "It moves along the ellipse", "Nothing"],
        start: { x: [1.2, -1, -2.3] },
        then: { x: [2.7, 0.5, -0.8] },
        answer:
          "Nothing. Adding a multiple of (1, 1, 1) changes the mean, and with it the angle, but the mean is subtracted. If you switch “subtract the mean” off, y moves.",
      },
    ],
    norm: [
      {
        ask: "If x shrinks to a quarter of its length, will n stay near the grey circle?",
        guesses: ["Yes", "No"],
        start: { x: [1.6, 0.4, -0.8], eps: 0.1 },
        then: { x: [0.4, 0.1, -0.2], eps: 0.1 },
        answer:
          "No. Once σ is no longer large compared with √ε, n is shorter than √3, and y moves from the ellipse towards its centre.",
      },
      {
        ask: "Without the subtraction, where can outputs lie?",
        guesses: ["On a larger ellipse", "On an ellipsoid", "Anywhere"],
        start: {},
        then: { on: { centre: false } },
        answer:
          "On an ellipsoid with semi-axes √3·|γ|, or inside it: without the subtraction, this is RMSNorm. Turn the picture. LayerNorm’s outputs are one slice of the ellipsoid (dashed).",
      },
    ],
    ellipse: [
      {
        ask: "Set the third gain to 0. How many semi-axes of the ellipse will become 0?",
        guesses: ["None", "One", "Two"],
        start: {},
        then: { gain: [1.5, 1, 0] },
        answer:
          "None. The third entry of y is 0 for every x, so the ellipse lies in the plane of e₁ and e₂. But nothing is lost, because the third entry of n is minus the sum of the other two.",
      },
      {
        ask: "Set a second gain to 0. What will be left of the ellipse?",
        guesses: ["A shorter ellipse", "A segment", "A point"],
        start: { gain: [1.5, 1, 0] },
        then: { gain: [1.5, 0, 0] },
        answer: "A segment: one semi-axis is 0.",
      },
      {
        ask: "Change the sign of the second gain. Will the semi-axes change?",
        guesses: ["Yes", "No"],
        start: {},
        then: { gain: [1.5, -1, 0.5] },
        answer: "No. The ellipse is reflected along e₂; its semi-axes depend only on the squares of the gains.",
      },
      {
        ask: "Make all three gains equal. Where will the ellipse lie?",
        guesses: ["In the plane of mean 0", "In a tilted plane"],
        start: {},
        then: { gain: [1, 1, 1] },
        answer: "In the plane of mean 0, as a circle: only unequal gains tilt and flatten it.",
      },
    ],
    jacobian: [
      {
        ask: "Drag x outwards, away from (1, 1, 1). What will happen to the image of the small circle?",
        guesses: ["It grows", "It shrinks", "Nothing"],
        start: { x: [0.6, 0, -0.6] },
        then: { x: [1.8, 0, -1.8] },
        answer:
          "It shrinks in proportion to 1/σ, as long as ε is small compared with σ²: the longer the vector, the less the same step changes its output.",
      },
      {
        ask: "The image of the circle is a segment. How will it change if ε is larger?",
        guesses: ["It becomes longer", "It becomes wider", "Nothing"],
        start: { x: [0.6, 0, -0.6] },
        then: { x: [0.6, 0, -0.6], eps: 0.3 },
        answer:
          "It becomes wider. LayerNorm suppresses two of the three directions, (1, 1, 1) and n; with a large ε, it passes on a little of the change along n. If ε is larger still, the whole image shrinks, because the norm divides by about √ε.",
      },
      {
        ask:
          "The true image of the circle (dashed) agrees with the Jacobian’s. Will it still agree if x moves towards (1, 1, 1)?",
        guesses: ["Yes", "No"],
        start: { x: [1.5, 0, -1.2] },
        then: { x: [0.5, 0, -0.4] },
        answer: "No. If the circle is not small compared with σ, its true image is bent along the ellipse.",
      },
      {
        ask: "Switch the subtraction off. What will the image become?",
        guesses: ["A point", "A longer segment", "An ellipse"],
        start: {},
        then: { on: { centre: false } },
        answer:
          "An ellipse, unless x lies in the plane of the small circle: RMSNorm suppresses only one of the three directions, that of x.",
      },
    ],
  };

  // Semi-axes for d = 3: their squares divided by d are the zeros of p′, where p is the polynomial whose zeros are
  // the squared gains (thm-critical-points); without centring they are the squared gains themselves.
  const semiAxes = (gain, centre) => {
    const squares = gain.map((g) => g * g);
    if (!centre) return squares.map((g) => Math.sqrt(3 * g)).sort((a, b) => b - a);
    const [a, b, c] = squares;
    const root = Math.sqrt(((a - b) ** 2 + (b - c) ** 2 + (c - a) ** 2) / 2);
    const larger = a + b + c + root; // three times the larger zero of p′
    return [Math.sqrt(larger), larger > 0 ? Math.sqrt((3 * (a * b + b * c + c * a)) / larger) : 0];
  };

  // Ends of the semi-axes: on the ellipse p cos t + q sin t, where the tangent is perpendicular to the radius.
  const principal = (bias, gain, flatly) => {
    if (!flatly) return [0, 1, 2].map((i) => bias.map((c, j) => c + (i === j) * Math.sqrt(3) * gain[i]));
    const [p, q] = ACROSS.map((e) => e.map((v, i) => Math.sqrt(3) * gain[i] * v));
    const times = (u, v) => u.reduce((sum, e, i) => sum + e * v[i], 0);
    const t = Math.atan2(2 * times(p, q), times(p, p) - times(q, q)) / 2;
    return [t, t + Math.PI / 2].map((t) => bias.map((c, i) => c + Math.cos(t) * p[i] + Math.sin(t) * q[i]));
  };

  // Compute everything that is shown from the reader's settings.
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

  const DISC = 2.3; // radius of the visible part of the plane
  const AXIS = 2.1; // visible length of the coordinate axes
  const VIEW = { x: -240, y: -200, width: 480, height: 400 };
  const [WIDE, HIGH] = [228, 188]; // a point outside the picture is shown at these limits
  const inside = ([left, top]) => [Math.max(-WIDE, Math.min(WIDE, left)), Math.max(-HIGH, Math.min(HIGH, top))];
  // Pixels per unit: fewer if outputs would otherwise leave the picture.
  const fitted = ({ axes, bias }) => Math.min(76, HIGH / ((axes[0] ?? 0) + Math.hypot(...bias)));
  const number = (v) => {
    const exact = Math.abs(v) >= 1e-12 && (Math.abs(v) < 0.01 || Math.abs(v) >= 1e4);
    return minus(exact ? v.toExponential(1) : v.toFixed(2).replace(/^-(0\.00)$/, "$1"));
  };

  const setUp = (host) => {
    const jacobian = host.dataset.show === "jacobian";
    const state = structuredClone(START);
    let [turn, home, scale] = [TURN, START.x];
    host.replaceChildren();
    const [seen, set] = ["seen", "set"].map((name) => make(host, "div", { class: `live-${name}` }));
    const svg = make(seen, "svg", { viewBox: Object.values(VIEW).join(" "), role: "group" });
    const LAYERS = "disc coordinates sphere slice one ring image axes way small small-true".split(" ");
    const layers = Object.fromEntries(LAYERS.map((name) => [name, make(svg, "path", { class: name })]));
    const sizes = { n: jacobian ? 3.5 : 5, y: jacobian ? 3.5 : 5, x: 8 };
    const dots = Object.fromEntries(
      Object.entries(sizes).map(([name, r]) => [name, make(svg, "circle", { class: `dot ${name}`, r })]),
    );
    const names = Object.fromEntries(
      Object.entries(NAMES).map(([name, words]) => [name, make(svg, "text", { class: `name-${name}` }, words)]),
    );
    const handle = make(svg, "circle", { class: "handle", r: 24, tabindex: 0, role: "slider", "aria-valuenow": 0 });
    handle.setAttribute("aria-label", `The vector x. ${DRAG} ${KEYBOARD}`);
    svg.append(dots.x); // above the ring of its handle
    const numbers = make(seen, "p", { class: "live-numbers" });
    const asked = make(set, "div");
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
          ? `${label}: expected a number from −1,000,000 to 1,000,000; the previous value is kept.`
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
    // Texts that depend on the switches are rewritten only when they change, and so not while x is dragged.
    const write = (node, words) => {
      if (node.textContent !== words) node.textContent = words;
    };

    const below = make(host, "p", { class: "live-legend" });
    const explained = make(below, "span");
    make(below, "span", { class: "live-hint" }, ` ${DRAG}`);
    make(below, "span", { class: "live-hint live-keyboard" }, ` ${KEYBOARD}`);

    const place = ({ n, y }) => {
      const to = flat(scale, turn);
      const rim = around([0, 0, 0], DISC).reduce((a, b) => (to(b)[0] > to(a)[0] ? b : a));
      const [one, plane, first, second, third] = [[1.5, 1.5, 1.5], rim, [AXIS, 0, 0], [0, AXIS, 0], [0, 0, AXIS]];
      const placed = Object.entries({ x: state.x, y, n, one, first, second, third, plane }).map(([name, point]) => {
        const at = inside(to(point));
        for (const dot of [dots[name], name === "x" && handle].filter(Boolean)) {
          dot.setAttribute("cx", at[0]);
          dot.setAttribute("cy", at[1]);
        }
        if (name in dots) write(names[name], `${at}` === `${to(point)}` ? name : `${name}, outside`);
        return { name: names[name], at, gap: name === "x" ? 12 : name in dots ? 8 : 3 };
      });
      const taken = placed.slice(0, 3).map(({ at: [x, y] }) => ({ x: x - 9, y: y - 9, width: 18, height: 18 }));
      label(placed, taken, VIEW);
    };
    const paint = (from) => {
      const found = compute(state);
      scale = fitted(found);
      outlines(found);
      place(found);
      write(explained, legend(jacobian, state.on));
      tell(found);
      for (const { input, said, read, say } of inputs) {
        if (input.type === "checkbox") input.checked = read();
        else if (input.type === "range") input.value = read();
        else if (input !== from) input.value = +read().toFixed(3);
        if (input !== from) input.setAttribute("aria-invalid", false);
        if (said) input.setAttribute("aria-valuetext", said.textContent = say(read()));
      }
      for (const { input } of gains) input.disabled = !state.on.gain;
      small.input.disabled = !state.on.divide;
      write(switches.divide.input.parentElement.firstChild, `${state.on.centre ? SWITCHES.divide : RMS} `);
    };
    const draw = onceAFrame(paint);

    const outlines = ({ mean, n, y, gain, bias, ends, image, true_image }) => {
      const to = flat(scale, turn);
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

    // Chromium applies the touch-action of the whole drawing, so that dragging x by touch would scroll the page.
    handle.addEventListener("touchstart", (event) => event.preventDefault(), { passive: false });
    let dragged;
    svg.addEventListener("pointerdown", (event) => {
      if (event.target !== handle && event.pointerType === "mouse" && event.button) return;
      dragged = { what: event.target === handle ? "x" : "view", at: [event.clientX, event.clientY] };
      svg.setPointerCapture(event.pointerId);
    });
    svg.addEventListener("pointermove", (event) => {
      if (!dragged) return;
      const unit = VIEW.width / svg.getBoundingClientRect().width;
      const [right, down] = [event.clientX - dragged.at[0], event.clientY - dragged.at[1]].map((v) => v * unit);
      dragged.at = [event.clientX, event.clientY];
      if (dragged.what === "view") turn += right / 160;
      else state.x = plus(state.x, lifted(scale, turn, right, down));
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
        ? lifted(scale, turn, ...KEYS[event.key])
        : event.key in ALONG && [1, 1, 1].map(() => ALONG[event.key]);
      if (!step && event.key !== "Home") return;
      event.preventDefault();
      if (!step) turn = TURN;
      warning.textContent = "";
      state.x = step ? plus(state.x, step).map((v) => Math.max(-FARTHEST, Math.min(FARTHEST, v))) : [...home];
      draw();
    });
    questions(asked, QUESTIONS[host.dataset.show], (changes) => {
      Object.assign(state, structuredClone({ ...START, ...changes, on: { ...START.on, ...changes.on } }));
      [turn, home] = [TURN, [...state.x]];
      warning.textContent = "";
      draw();
    });
    host.live = { state };
    paint();
  };

  whenSeen(".hold", setUp);
}
