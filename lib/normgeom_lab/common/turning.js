/* A turning picture of turning.py: draws it anew when it turns, and other parts at other positions of its sliders. */
(root) => {
  "use strict";
  const svg = root.querySelector("svg");
  const { frame, scale, turn } = JSON.parse(root.dataset.view);
  const [round, high] = root.querySelectorAll(".turn input");
  const sliders = [...root.querySelectorAll("input[data-labels]")];
  const labels = sliders.map((input) => JSON.parse(input.dataset.labels));
  const parts = [...svg.querySelectorAll("[data-x]")].map((element) => ({
    element,
    at: JSON.parse(element.dataset.at),
    corners: element.dataset.x.split(",").map((x) => x.split(" ").map(Number)),
  }));
  // As narrow as what can come into view, with room for a name at either end: letters are larger on a phone.
  const half = Math.min(320, 48 + scale * Math.max(...parts.flatMap(({ corners }) => corners.map((x) => Math.hypot(...x)))));
  Object.assign(svg.viewBox.baseVal, { x: -half, width: 2 * half });
  for (const name of svg.querySelectorAll("text:not([data-x])")) name.setAttribute("x", 8 - half);
  const radians = (input) => (Number(input.value) * Math.PI) / 180;

  const draw = () => {
    const [across, above] = [turn + radians(round), radians(high)];
    const [c, s, k, l] = [Math.cos(across), Math.sin(across), Math.cos(above), Math.sin(above)];
    const seen = (x) => {
      const [p, q, up] = frame.map((e) => e[0] * x[0] + e[1] * x[1] + e[2] * x[2]);
      const away = s * p + c * q;
      return [scale * (c * p - s * q), -scale * (k * up + l * away), l * up - k * away];
    };
    const place = ([right, down]) => `${right.toFixed(1)},${down.toFixed(1)}`;
    for (const { element, at, corners } of parts) {
      const shown = Object.entries(at).every(([i, position]) => Number(sliders[i].value) === position);
      element.style.display = shown ? "" : "none";
      if (!shown) continue;
      const points = corners.map(seen);
      if (element.localName === "text") {
        element.setAttribute("x", points[0][0].toFixed(1));
        element.setAttribute("y", points[0][1].toFixed(1));
      } else if (element.localName === "g") {
        const sides = [points.filter((x) => x[2] < 0), points.filter((x) => x[2] >= 0)];
        sides.forEach((side, i) => element.children[i].setAttribute("d", side.map((x) => `M${place(x)}h.01`).join("")));
      } else element.setAttribute("d", `M${points.map(place).join("L")}`);
    }
    const say = (input, words) => {
      input.nextElementSibling.textContent = words;
      input.setAttribute("aria-valuetext", words);
    };
    for (const input of [round, high]) say(input, `${Math.round(input.value)}°`);
    sliders.forEach((input, i) => say(input, labels[i][input.value]));
  };

  let asked = false;
  const soon = () => {
    if (!asked)
      requestAnimationFrame(() => {
        asked = false;
        draw();
      });
    asked = true;
  };
  for (const input of [round, high, ...sliders]) input.addEventListener("input", soon);
  let hand;
  svg.addEventListener("pointerdown", (event) => {
    hand = [event.clientX, event.clientY];
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointermove", (event) => {
    if (!hand) return;
    const [right, down] = [event.clientX - hand[0], event.clientY - hand[1]];
    hand = [event.clientX, event.clientY];
    round.value = ((((Number(round.value) + right / 2 + 180) % 360) + 360) % 360) - 180;
    high.value = Number(high.value) + down / 2;
    soon();
  });
  for (const over of ["pointerup", "pointercancel"]) svg.addEventListener(over, () => (hand = undefined));
  draw();
}
