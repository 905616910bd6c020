/* The front page: a cloud of vectors passes through LayerNorm.  It plays once, and then the reader can move it. */
"use strict";
{
  const { make, whenSeen, flat, around, minus, degrees } = livePage;
  const SCALE = 66; // pixels per unit
  const SECONDS = 9; // length of the animation
  const EPS = 0.02;
  const GAIN = [1.35, 0.85, 0.4];
  const BIAS = [0.3, 0.15, 0.45];
  const WORDS = [
    "LayerNorm moves these ninety vectors in three steps.",
    "Subtract the mean: all of them lie in one plane.",
    "Divide by the standard deviation: nearly all of them lie on one circle. ε keeps the short ones inside.",
    "Apply gain and bias: the circle becomes a tilted ellipse, which contains every output of this LayerNorm.",
  ];
  const MARKS = ["vectors", "mean", "division", "gain, bias"]; // under the slider
  // LayerNorm for three entries; returns the vector before and after each step.
  const stages = (x) => {
    const mean = x.reduce((a, b) => a + b) / 3;
    const centred = x.map((v) => v - mean);
    const s = Math.sqrt(centred.reduce((a, v) => a + v * v, 0) / 3 + EPS);
    const n = centred.map((v) => v / s);
    return [x, centred, n, n.map((v, i) => GAIN[i] * v + BIAS[i])];
  };
  const between = (way, t) => {
    const k = Math.min(2, Math.floor(t));
    return way[k].map((v, i) => v + (t - k) * (way[k + 1][i] - v));
  };

  // The same points at every visit.
  let state = 7;
  const uniform = () => (state = (state * 48271) % 2147483647) / 2147483647;
  const normal = () => Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform());
  const cloud = Array.from({ length: 90 }, () => {
    const mean = 0.7 * normal();
    return stages([0, 1, 2].map(() => mean + 0.8 * normal()));
  });
  // A circle of radius √3 in the plane of mean 0, and its image under gain and bias.
  const ring = around([0, 0, 0], Math.sqrt(3)).map((n) => [n, n, n, n.map((v, i) => GAIN[i] * v + BIAS[i])]);

  const setUp = (host) => {
    host.replaceChildren();
    const svg = make(host, "svg", { viewBox: "-240 -200 480 400", role: "img" });
    const disc = make(svg, "path", { class: "disc" });
    const one = make(svg, "line", { class: "one" });
    const name = make(svg, "text", { class: "name" }, "(1, 1, 1)");
    const outline = make(svg, "path", { class: "ring" });
    const dots = cloud.map(() => make(svg, "circle", { r: 3.4 }));
    const words = make(host, "p");
    const lines = WORDS.map((said) => make(words, "span", {}, said)); // stacked, so that the longest fixes the height
    const row = make(host, "div", { class: "live-row" });
    const button = make(row, "button", { type: "button" });
    const steps = make(row, "label", { class: "steps" }, "Steps of LayerNorm");
    const slider = make(steps, "input", {
      type: "range",
      min: 0,
      max: 3,
      step: 0.01,
      "aria-label": "Steps of LayerNorm",
    });
    const marks = make(steps, "span", { "aria-hidden": true });
    for (const mark of MARKS) make(marks, "span", {}, mark);
    const round = make(make(row, "label", {}, "turn "), "input", { type: "range", min: -180, max: 180, step: 5 });

    let turn = 0.5;
    const project = (point) => flat(SCALE, turn)(point);
    const path = (points) => `M${points.map((p) => project(p).map((v) => v.toFixed(1)).join(",")).join("L")}Z`;

    const draw = (t) => {
      disc.setAttribute("d", path(ring.map(([n]) => n.map((v) => 1.35 * v)))); // the plane of mean 0
      disc.style.opacity = Math.min(1, Math.max(0, t - 0.4) / 0.6);
      outline.setAttribute("d", path(ring.map((way) => between(way, Math.max(t, 2)))));
      outline.style.opacity = Math.min(1, Math.max(0, t - 1.4) / 0.6);
      const [from, to] = [project([-1.9, -1.9, -1.9]), project([1.8, 1.8, 1.8])];
      for (const [i, [x, y]] of [from, to].entries()) {
        one.setAttribute(`x${i + 1}`, x);
        one.setAttribute(`y${i + 1}`, y);
      }
      name.setAttribute("x", to[0] + 8);
      name.setAttribute("y", to[1]);
      dots.forEach((dot, i) => {
        const [x, y] = project(between(cloud[i], t));
        dot.setAttribute("cx", x);
        dot.setAttribute("cy", y);
      });
      const said = WORDS[Math.round(t)];
      lines.forEach((line, i) => (line.style.visibility = i === Math.round(t) ? "" : "hidden"));
      svg.setAttribute("aria-label", `A cloud of points in space. ${said}`);
      slider.value = t;
      slider.setAttribute("aria-valuetext", `${t.toFixed(2)} of 3. ${said}`);
      round.value = degrees(turn);
      round.setAttribute("aria-valuetext", `${minus(round.value)}°`);
    };

    // An animation longer than five seconds needs controls to stop it and play it again.
    let playing;
    const stop = () => {
      cancelAnimationFrame(playing);
      playing = undefined;
      button.textContent = "play";
    };
    const play = () => {
      let start;
      button.textContent = "pause";
      const step = (now) => {
        start ??= now;
        const share = Math.min(1, (now - start) / (1000 * SECONDS));
        // Each step pauses for a third of its time.
        const whole = Math.floor(3.99 * share);
        draw(Math.min(3, whole + Math.min(1, Math.max(0, (3.99 * share - whole) * 1.5 - 0.5))));
        if (share < 1) playing = requestAnimationFrame(step);
        else stop();
      };
      playing = requestAnimationFrame(step);
    };

    button.addEventListener("click", () => (playing ? stop() : play()));
    for (const touched of ["pointerdown", "keydown"]) slider.addEventListener(touched, stop);
    slider.addEventListener("input", () => {
      stop();
      draw(Number(slider.value));
    });
    round.addEventListener("input", () => {
      stop();
      turn = (round.value * Math.PI) / 180;
      draw(Number(slider.value));
    });
    svg.addEventListener("pointermove", (event) => {
      if (event.buttons !== 1) return;
      stop();
      turn += event.movementX / 120;
      draw(Number(slider.value));
    });
    stop();
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) draw(3);
    else {
      draw(0);
      play();
    }
  };

  whenSeen("#moving-steps", setUp);
}
