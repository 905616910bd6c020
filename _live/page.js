/* What the live parts of a page share: elements, words for those who listen, and waiting until a part comes into view. */
"use strict";
globalThis.livePage = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const make = (parent, name, attributes = {}, text) => {
    const drawn = name === "svg" || parent instanceof SVGElement;
    const element = drawn ? document.createElementNS(SVG, name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    return parent.appendChild(element);
  };

  // What a screen reader says once the reader's hand rests.
  const REST = 500; // milliseconds
  const speaker = (host) => {
    const status = make(host, "p", { class: "live-spoken", role: "status" });
    let waiting;
    return (words) => {
      clearTimeout(waiting);
      waiting = setTimeout(() => (status.textContent = words), REST);
    };
  };

  // At most one call a frame, with the last arguments.
  const onceAFrame = (work) => {
    let asked;
    return (...given) => {
      if (!asked) requestAnimationFrame(() => work(...[asked, (asked = undefined)][0]));
      asked = given;
    };
  };

  // Nothing is computed before it is nearly in view.
  const whenSeen = (selector, setUp) =>
    addEventListener("DOMContentLoaded", () => {
      const seen = new IntersectionObserver(
        (entries) => {
          for (const { target } of entries.filter((entry) => entry.isIntersecting)) {
            seen.unobserve(target);
            setUp(target);
          }
        },
        { rootMargin: "200px" },
      );
      for (const host of document.querySelectorAll(selector)) seen.observe(host);
    });

  const minus = (text) => String(text).replace(/-/g, "−");
  return { make, speaker, onceAFrame, whenSeen, minus };
})();
