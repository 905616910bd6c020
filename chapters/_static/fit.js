/* A displayed formula that is wider than its column is set smaller, down to a size that can still be read; one in a line
   that is wider than the line scrolls in a line of its own, and is not parted from a bracket or a comma that touches it. */
{
  const [BEFORE, AFTER] = [/[^\s–—]{1,8}$/, /^(?:[^\s–—]{1,16}(?=[\s–—]|$)|[.,;:!?)\]’”]+)/];
  const touching = (text, pattern) => (text?.nodeType === Node.TEXT_NODE && pattern.exec(text.data)?.[0].length) || 0;
  const join = (formula) => {
    const { previousSibling: left, nextSibling: right } = formula;
    const [before, after] = [touching(left, BEFORE), touching(right, AFTER)];
    if (!before && !after) return;
    const joined = document.createElement("span");
    joined.className = "joined";
    formula.replaceWith(joined);
    if (before) joined.append(left.splitText(left.length - before));
    joined.append(formula);
    if (after) {
      right.splitText(after);
      joined.append(right);
    }
  };
  addEventListener("DOMContentLoaded", () => document.querySelectorAll(".bd-article span.math").forEach(join));

  const LEAST = 0.55; // of the size it would have
  const shown = (selector) =>
    [...document.querySelectorAll(`.bd-article ${selector}`)].filter((set) => set.checkVisibility());
  const fit = () => {
    const displayed = shown("div.math");
    const inLines = shown("span.math");
    for (const box of displayed) box.style.fontSize = "";
    for (const set of inLines) set.classList.remove("wide");
    // All widths are read before any is changed: each turn from one to the other lays out the page anew.
    const ratios = displayed.map((box) => {
      // MathJax's own box scrolls too, and is narrower where the number stands beside it.
      const inner = [...box.querySelectorAll("mjx-container")];
      const needs = inner.map((set) => set.scrollWidth + box.clientWidth - set.clientWidth);
      return box.clientWidth / Math.max(box.scrollWidth, ...needs);
    });
    const across = (element) => element.getBoundingClientRect().width;
    const long = inLines.filter((set) => across(set) > across(set.closest("p, li, td, th, dd, div")) + 1);
    displayed.forEach((box, i) => {
      if (ratios[i] < 1) box.style.fontSize = `${Math.floor(100 * Math.max(LEAST, 0.99 * ratios[i]))}%`;
    });
    for (const set of long) set.classList.add("wide");
  };

  let width;
  const refit = () => {
    if (innerWidth !== width) fit();
    width = innerWidth;
  };
  addEventListener("load", async () => {
    await window.MathJax?.startup?.promise;
    refit();
    addEventListener("resize", refit);
    document.addEventListener("toggle", fit, true);
  });
}
