/* Slides: keys, swipes, buttons and the address choose a slide; each slide is fitted to the screen and to paper. */
"use strict";
{
  const root = document.documentElement;
  const remembered = (key) => {
    try {
      return localStorage.getItem(key);
    } catch {
      return null;
    }
  };
  const dark = () => (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  root.dataset.theme = remembered("theme") || dark();
  root.classList.add("deck");

  // The smallest shares of their usual size to which text and formulas may shrink so that they fit on a slide.
  const LEAST = 0.78;
  const LEAST_FORMULA = 0.55;
  const overflows = (box) => box.scrollHeight > box.clientHeight + 1 || box.scrollWidth > box.clientWidth + 1;

  // The height in pixels at which a figure's picture is shown, scaled to fit its box.
  const height = (figure) => {
    const picture = [...figure.querySelectorAll("img, svg")].find((drawn) => drawn.checkVisibility());
    if (!picture) return 0;
    const { width, height } = picture.getBoundingClientRect();
    const view = picture.viewBox?.baseVal;
    const shape = view ? view.height / view.width : picture.naturalHeight / picture.naturalWidth;
    return Math.min(height, width * shape);
  };
  const arrange = (figure) => {
    figure.classList.remove("beside");
    const below = height(figure);
    figure.classList.add("beside");
    if (innerWidth < innerHeight || height(figure) <= below) figure.classList.remove("beside");
  };
  // A displayed formula that is wider than the slide, together with its number, is set smaller.
  const narrow = (math) => {
    math.style.fontSize = "";
    const needs = [...math.querySelectorAll("mjx-container")].map((set) =>
      set.scrollWidth + math.clientWidth - set.clientWidth
    );
    const share = math.clientWidth / Math.max(math.scrollWidth, ...needs);
    if (share < 1) math.style.fontSize = `${Math.floor(100 * Math.max(LEAST_FORMULA, 0.98 * share))}%`;
  };
  const fit = (slide) => {
    const box = slide.querySelector(".shown");
    box.style.removeProperty("--fit");
    for (const figure of box.querySelectorAll(":scope > figure")) arrange(figure);
    for (let size = 0.98; overflows(box) && size >= LEAST; size -= 0.02) box.style.setProperty("--fit", size);
    box.querySelectorAll("div.math").forEach(narrow);
    if (overflows(box)) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  };

  let slides = [];
  let at = 0;
  let buttons = [];
  const show = (next, focus = true) => {
    at = Math.max(0, Math.min(slides.length - 1, next));
    slides.forEach((slide, i) => slide.classList.toggle("now", i === at));
    buttons[0].disabled = at === 0;
    buttons[1].disabled = at === slides.length - 1;
    history.replaceState(null, "", `#${slides[at].id}`);
    if (focus) slides[at].focus({ preventScroll: true });
  };
  const byAddress = () => Math.max(0, slides.findIndex((slide) => `#${slide.id}` === location.hash));

  const MOVES = {
    ...{ ArrowRight: 1, ArrowDown: 1, PageDown: 1, " ": 1 },
    ...{ ArrowLeft: -1, ArrowUp: -1, PageUp: -1, Home: -Infinity, End: Infinity },
  };
  // The focused element may need the key itself: a slider, a button, anything that scrolls.
  const wants = (target, key) =>
    target.closest("input, select, textarea, svg, .shown[tabindex]") || (key === " " && target.closest("a, button"));
  const pressed = (event) => {
    if (event.key === "Escape") slides[at].focus({ preventScroll: true });
    if (event.ctrlKey || event.altKey || event.metaKey || !(event.key in MOVES) || wants(event.target, event.key)) {
      return;
    }
    event.preventDefault();
    show(at + (event.key === " " && event.shiftKey ? -1 : MOVES[event.key]));
  };

  const SWIPE = 50; // pixels
  const sideways = (e) =>
    e.scrollWidth > e.clientWidth + 1 && ["auto", "scroll"].includes(getComputedStyle(e).overflowX);
  const scrolls = (e) => e && (sideways(e) || scrolls(e.parentElement));
  const touched = () => {
    let from;
    addEventListener("touchstart", ({ target, touches: [finger] }) => {
      from = target.closest("input, .hold") || scrolls(target) ? null : finger;
    }, { passive: true });
    addEventListener("touchend", ({ changedTouches: [finger] }) => {
      if (!from) return;
      const [right, down] = [finger.clientX - from.clientX, finger.clientY - from.clientY];
      if (Math.abs(right) > SWIPE && Math.abs(right) > 2 * Math.abs(down)) show(at - Math.sign(right));
    });
  };

  const button = (host, words, sign, press) => {
    const made = document.createElement("button");
    made.type = "button";
    made.textContent = sign;
    made.setAttribute("aria-label", words);
    made.title = words;
    made.addEventListener("click", press);
    return host.appendChild(made);
  };

  addEventListener("DOMContentLoaded", () => {
    slides = [...document.querySelectorAll(".slide")];
    const host = document.body.appendChild(document.createElement("nav"));
    host.className = "deck-keys";
    host.setAttribute("aria-label", "Slides");
    button(host, "Light or dark", "◐", () => (root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark"));
    buttons = [
      button(host, "Previous slide", "‹", () => show(at - 1)),
      button(host, "Next slide", "›", () => show(at + 1)),
    ];
    show(byAddress(), false);
    addEventListener("keydown", pressed);
    addEventListener("hashchange", () => show(byAddress()));
    touched();
  });
  const fitAll = () => slides.forEach(fit);
  addEventListener("load", async () => {
    await window.MathJax?.startup?.promise;
    await document.fonts.ready;
    fitAll();
    addEventListener("resize", fitAll);
    root.dataset.fitted = "";
  });

  // Paper is white and has a different shape.
  let onScreen;
  addEventListener("beforeprint", () => {
    onScreen = root.dataset.theme;
    root.dataset.theme = "light";
    root.classList.add("paper");
    fitAll();
  });
  addEventListener("afterprint", () => {
    root.dataset.theme = onScreen;
    root.classList.remove("paper");
    fitAll();
  });
}
