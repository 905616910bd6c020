/* A norm to hold: a vector in space, and what LayerNorm or RMSNorm makes of it, at the reader's hand.

   <div class="hold" data-show="norm">words for those without scripts</div>, or data-show="jacobian" for a small circle
   around the vector and its image.  The arithmetic is network.js's. */
"use strict";
{
  const SVG = "http://www.w3.org/2000/svg";
  const make = (parent, name, attributes = {}, text) => {
    const element = parent instanceof SVGElement || name === "svg" ? document.createElementNS(SVG, name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    return parent.appendChild(element);
  };
  const ONE = [1, 1, 1];
  const STEPS = [
    ["centre", "subtract the mean"],
    ["divide", "divide by the spread"],
    ["gain", "gain"],
    ["bias", "bias"],
  ];
  const START = { x: [2.2, 0.4, -0.5], gain: [1.5, 1, 0.5], bias: [0.3, 0.2, 0.4], eps: 1e-5, on: { centre: true, divide: true, gain: true, bias: false } };
  const QUESTIONS = {
    norm: [
      ["Move x along (1, 1, 1), with Page Up and Page Down. What does the output do?", { x: [2.2, 0.4, -0.5] }, "Nothing: the mean is subtracted, and x moves by a multiple of (1, 1, 1) alone. Switch “subtract the mean” off, and the output moves."],
      ["Make x very short. When does the output leave the ellipse?", { x: [0.02, 0, -0.02], eps: 1e-2 }, "When its spread is no longer large beside √ε: then ε decides, and the output goes to the centre."],
      ["Set one gain to 0. What is left of the ellipse?", { gain: [1.5, 1, 0], on: { gain: true } }, "One semi-axis stays in the plane of the other two coordinates: the ellipse lies in a coordinate plane, and nothing of the third entry is passed on."],
      ["Set one gain to −1 times another. Which semi-axes do you find?", { gain: [1, -1, 0.5], on: { gain: true } }, "The signs play no part: the squares of the gains decide, and between two equal squares lies a semi-axis of √3 times their root."],
      ["Without the subtraction, where can outputs be?", { on: { centre: false } }, "On a whole ellipsoid with semi-axes √3 |γ|: that is RMSNorm."],
    ],
    jacobian: [
      ["Move x outwards, away from (1, 1, 1). What becomes of the image of the small circle?", { x: [1, 0, -1] }, "It shrinks as 1 over the spread: a step of the same length turns a longer vector less."],
      ["In which direction does the image have no width?", { x: [2.2, 0.4, -0.5] }, "Along n, but for ε, and along (1, 1, 1): the Jacobian loses both, so a ball becomes nearly a segment."],
      ["Make x short and ε large. What changes?", { x: [0.3, 0, -0.3], eps: 0.3 }, "The image gets a second width: where ε decides, the norm no longer forgets the length."],
    ],
  };

  // Squared semi-axes over d are the zeros of p′, p the polynomial with the squared gains as its zeros
  // (thm-critical-points); without centring they are the squared gains.
  const semiAxes = (gain, centre) => {
    const squares = gain.map((g) => g * g);
    if (!centre) return squares.map((g) => Math.sqrt(3 * g)).sort((a, b) => b - a);
    const sum = squares[0] + squares[1] + squares[2];
    const pairs = squares[0] * squares[1] + squares[0] * squares[2] + squares[1] * squares[2];
    const root = Math.sqrt(Math.max(0, sum * sum - 3 * pairs));
    return [sum + root, sum - root].map((t) => Math.sqrt(Math.max(0, t)));
  };

  // All that is shown, from what the reader has set.
  const compute = ({ x, gain, bias, eps, on }) => {
    const [g, b] = [on.gain ? gain : ONE, on.bias ? bias : [0, 0, 0]];
    const options = { gain: g, bias: b, eps, centre: on.centre, divide: on.divide };
    const { mean, s, n, y } = normgeom.norm(x, options);
    const spread = Math.sqrt(x.reduce((a, v) => a + (v - mean) ** 2, 0) / 3);
    return { mean, spread, s, n, y, g, b, options, angle: normgeom.look(x).angle, length: Math.hypot(...n), axes: on.divide ? semiAxes(g, on.centre) : [] };
  };
  globalThis.normgeom.semiAxes = semiAxes;
  globalThis.normgeom.held = compute;

  const setUp = (host) => {
    const jacobian = host.dataset.show === "jacobian";
    const state = structuredClone(START);
    let turn = 0.5;
    host.replaceChildren();
    const svg = make(host, "svg", { viewBox: "-320 -210 640 420", role: "img" });
    const layer = Object.fromEntries(["disc", "sphere", "one", "ring", "image", "path", "axes", "small"].map((name) => [name, make(svg, "path", { class: name })]));
    const dots = Object.fromEntries(["n", "y", "x"].map((name) => [name, make(svg, "circle", { class: `dot ${name}`, r: name === "x" ? 8 : 5 })]));
    const names = Object.fromEntries(["n", "y", "x", "one"].map((name) => [name, make(svg, "text", { class: "name" }, name === "one" ? "(1, 1, 1)" : name)]));
    for (const [key, value] of Object.entries({ tabindex: 0, role: "application", "aria-label": "The vector x: move it with the arrow keys, and along (1, 1, 1) with Page Up and Page Down" })) dots.x.setAttribute(key, value);
    const numbers = make(host, "p", { class: "hold-numbers", "aria-live": "polite" });
    const controls = make(host, "div", { class: "hold-controls" });
    const inputs = [];
    const field = (row, label, attributes, read, write) => {
      const wrap = make(row, "label", {}, `${label} `);
      const input = make(wrap, "input", attributes);
      const said = attributes.type === "range" ? make(wrap, "output") : null;
      input.addEventListener("input", () => {
        const value = attributes.type === "checkbox" ? input.checked : Number(input.value);
        const wrong = input.type === "number" && (input.value === "" || !Number.isFinite(value) || Math.abs(value) > 1e6);
        input.toggleAttribute("aria-invalid", wrong);
        warning.textContent = wrong ? `${label}: a number between −1,000,000 and 1,000,000 is needed.` : "";
        if (!wrong) {
          write(value);
          draw(input);
        }
      });
      inputs.push([input, said, read]);
    };
    const rows = ["x", "gain", "switches"].map(() => make(controls, "div", { class: "hold-row" }));
    for (const i of [0, 1, 2]) field(rows[0], `x${"₁₂₃"[i]}`, { type: "number", step: 0.1 }, () => state.x[i], (v) => (state.x[i] = v));
    for (const i of [0, 1, 2]) field(rows[1], `γ${"₁₂₃"[i]}`, { type: "range", min: -2, max: 2, step: 0.05 }, () => state.gain[i], (v) => (state.gain[i] = v));
    field(rows[1], "ε", { type: "range", min: -6, max: 0.5, step: 0.25 }, () => Math.log10(state.eps), (v) => (state.eps = 10 ** v));
    for (const [key, label] of STEPS) field(rows[2], label, { type: "checkbox" }, () => state.on[key], (v) => (state.on[key] = v));
    const warning = make(host, "p", { class: "hold-warning", role: "alert" });
    const list = make(host, "ul", { class: "hold-questions" });
    for (const [question, set, answer] of QUESTIONS[jacobian ? "jacobian" : "norm"]) {
      const item = make(list, "li", {}, `${question} `);
      make(item, "button", { type: "button" }, "Set it up").addEventListener("click", () => {
        Object.assign(state, structuredClone(START), structuredClone({ ...set, on: { ...START.on, ...set.on } }));
        draw();
      });
      const fold = make(item, "details");
      make(fold, "summary", {}, "What one sees");
      make(fold, "p", {}, answer);
    }

    // (1, 1, 1) stands upright; the plane of mean 0 is seen from a little above.
    const SCALE = 62;
    const project = ([a, b, c]) => {
      const up = (a + b + c) / Math.sqrt(3);
      const [p, q] = [(a - b) / Math.SQRT2, (a + b - 2 * c) / Math.sqrt(6)];
      const [k, l] = [Math.cos(turn), Math.sin(turn)];
      return [SCALE * (k * p - l * q), -SCALE * (0.95 * up + 0.31 * (l * p + k * q))];
    };
    // A move on the screen as one in space, in the plane that is looked at.
    const unproject = ([right, down]) => {
      const [k, l] = [Math.cos(turn), Math.sin(turn)];
      const [p, q, up] = [(k * right - l * 0 * down) / SCALE, (-l * right) / SCALE, -down / SCALE];
      return [p / Math.SQRT2 + q / Math.sqrt(6) + up / Math.sqrt(3), -p / Math.SQRT2 + q / Math.sqrt(6) + up / Math.sqrt(3), (-2 * q) / Math.sqrt(6) + up / Math.sqrt(3)];
    };
    const path = (points, close) => `M${points.map((p) => project(p).map((v) => v.toFixed(1)).join(",")).join("L")}${close ? "Z" : ""}`;
    const circle = (u, v, centre = [0, 0, 0], radius = 1) => Array.from({ length: 73 }, (_, i) => {
      const [c, s] = [Math.cos((i * Math.PI) / 36), Math.sin((i * Math.PI) / 36)];
      return [0, 1, 2].map((j) => centre[j] + radius * (c * u[j] + s * v[j]));
    });
    const U = [1 / Math.SQRT2, -1 / Math.SQRT2, 0];
    const V = [1 / Math.sqrt(6), 1 / Math.sqrt(6), -2 / Math.sqrt(6)];
    const round = (v) => (Math.abs(v) >= 1e4 || (v !== 0 && Math.abs(v) < 0.01) ? v.toExponential(1) : v.toFixed(2)).replace("-", "−");

    let waiting;
    const draw = (from) => {
      cancelAnimationFrame(waiting);
      waiting = requestAnimationFrame(() => paint(from));
    };
    const paint = (from) => {
      const { x, on } = state;
      const found = compute(state);
      const { mean, spread, s, n, y, g, b, options, axes } = found;
      const outward = (v) => v.map((e, i) => e * g[i] + b[i]);
      const ring = circle(U, V, [0, 0, 0], Math.sqrt(3));
      layer.disc.setAttribute("d", path(circle(U, V, [0, 0, 0], 2.4), true));
      layer.sphere.setAttribute("d", on.centre || !on.divide ? "" : [circle([1, 0, 0], [0, 1, 0], [0, 0, 0], Math.sqrt(3)), circle([0, 1, 0], [0, 0, 1], [0, 0, 0], Math.sqrt(3)), circle([1, 0, 0], [0, 0, 1], [0, 0, 0], Math.sqrt(3))].map((c) => path(c.map(outward), true)).join(""));
      layer.ring.setAttribute("d", on.centre && on.divide ? path(ring, true) : "");
      layer.image.setAttribute("d", on.centre && on.divide ? path(ring.map(outward), true) : "");
      layer.one.setAttribute("d", path([[-2, -2, -2], [2, 2, 2]]));
      const centred = on.centre ? x.map((v) => v - mean) : x;
      layer.path.setAttribute("d", path([x, centred, n, y]));
      layer.axes.setAttribute("d", !jacobian && on.centre && on.divide ? principal(ring.map(outward), b).map((p) => path([b, p])).join("") : "");
      if (jacobian) {
        const radius = 0.25;
        const around = circle(U, V, [0, 0, 0], radius).map((v) => v);
        const image = around.map((v) => normgeom.jacobianTimes(v, { n, s }, { gain: g, centre: on.centre }).map((e, i) => y[i] + e));
        const outside = circle(U, V, x, radius).map((v) => normgeom.norm(v, options).y);
        layer.small.setAttribute("d", on.divide ? path(circle(U, V, x, radius), true) + path(image, true) + path(outside, true) : "");
      }
      for (const [name, at] of Object.entries({ n, y, x })) {
        const [left, top] = project(at);
        dots[name].setAttribute("cx", left);
        dots[name].setAttribute("cy", top);
        names[name].setAttribute("x", left + 9);
        names[name].setAttribute("y", top - 9);
      }
      const [left, top] = project([2, 2, 2]);
      names.one.setAttribute("x", left + 8);
      names.one.setAttribute("y", top);
      numbers.textContent = `mean ${round(mean)} · σ ${round(spread)} · angle to (1, 1, 1) ${found.angle.toFixed(1)}° · ‖n‖ ${round(found.length)}${axes.length ? ` · semi-axes ${axes.map(round).join(", ")}` : ""} · output (${y.map(round).join(", ")})`;
      svg.setAttribute("aria-label", `A vector in space and its norm. ${numbers.textContent}`);
      for (const [input, said, read] of inputs) {
        if (input === from && input.type === "number") continue;
        if (input.type === "checkbox") input.checked = read();
        else input.value = input.type === "number" ? Number(read().toFixed(3)) : read();
        if (said) said.textContent = input.max === "0.5" ? round(state.eps) : round(read());
      }
      for (const input of rows[1].querySelectorAll("input")) if (input.max === "2") input.disabled = !on.gain;
    };
    // The points of an outline that are farthest from and nearest to its centre.
    const principal = (outline, centre) => {
      const far = outline.map((p) => Math.hypot(...p.map((v, i) => v - centre[i])));
      return [outline[far.indexOf(Math.max(...far))], outline[far.indexOf(Math.min(...far))]];
    };

    let dragged;
    svg.addEventListener("pointerdown", (event) => {
      dragged = event.target === dots.x ? "x" : "view";
      svg.setPointerCapture(event.pointerId);
      event.preventDefault();
    });
    svg.addEventListener("pointermove", (event) => {
      if (!dragged) return;
      const unit = 640 / svg.getBoundingClientRect().width;
      if (dragged === "view") turn += event.movementX / 120;
      else {
        const moved = unproject([event.movementX * unit, event.movementY * unit]);
        state.x = state.x.map((v, i) => v + moved[i]);
      }
      draw();
    });
    for (const over of ["pointerup", "pointercancel"]) svg.addEventListener(over, () => (dragged = undefined));
    const KEYS = { ArrowLeft: [-6, 0], ArrowRight: [6, 0], ArrowUp: [0, -6], ArrowDown: [0, 6] };
    dots.x.addEventListener("keydown", (event) => {
      const along = { PageUp: 0.1, PageDown: -0.1 }[event.key];
      const moved = KEYS[event.key] ? unproject(KEYS[event.key]) : along && [along, along, along];
      if (!moved) return;
      event.preventDefault();
      state.x = state.x.map((v, i) => v + moved[i]);
      draw();
    });
    host.hold = { state, draw, paint };
    paint();
  };

  addEventListener("DOMContentLoaded", () => {
    const seen = new IntersectionObserver((entries) => {
      for (const { isIntersecting, target } of entries)
        if (isIntersecting) {
          seen.unobserve(target);
          setUp(target);
        }
    }, { rootMargin: "200px" });
    for (const host of document.querySelectorAll(".hold")) seen.observe(host);
  });
}
