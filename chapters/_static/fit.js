/* A displayed formula that is wider than its column is set smaller, down to a size that is still legible; an inline
   formula that is wider than its line scrolls in a line of its own, and no line break separates it from text that
   touches it.  Cells of a table of sentences store their column headers, for screens where rows become blocks. */
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

  const LONG = 50; // a longer cell counts as a sentence
  const cells = (table) => [...table.querySelectorAll("tbody :is(td, th)")];
  const isProse = (table) => table.tHead && cells(table).some((cell) => cell.textContent.length > LONG);
  const label = (table) => {
    for (const cell of cells(table)) cell.dataset.label = table.tHead.rows[0].cells[cell.cellIndex].textContent;
  };
  addEventListener("DOMContentLoaded", () => {
    for (const table of document.querySelectorAll(".bd-article table")) table.classList.toggle("prose", isProse(table));
    document.querySelectorAll(".bd-article span.math").forEach(join);
  });

  const LEAST = 14; // pixels
  const shown = (selector) =>
    [...document.querySelectorAll(`.bd-article ${selector}`)].filter((set) => set.checkVisibility());
  const fit = () => {
    const displayed = shown("div.math");
    const inLines = shown("span.math");
    for (const box of displayed) box.style.fontSize = "";
    for (const set of inLines) set.classList.remove("wide");
    // Read all widths before changing any: each switch between the two forces a new layout.
    const sizes = displayed.map((box) => {
      // MathJax's own box also scrolls, and is narrower if the number is next to it.
      const inner = [...box.querySelectorAll("mjx-container")];
      const needs = inner.map((set) => set.scrollWidth + box.clientWidth - set.clientWidth);
      const size = Math.min(...inner.map((set) => parseFloat(getComputedStyle(set).fontSize)));
      return Math.max(
        Math.floor((99 * box.clientWidth) / Math.max(box.scrollWidth, ...needs)),
        Math.ceil((100 * LEAST) / size),
      );
    });
    const across = (element) => element.getBoundingClientRect().width;
    const long = inLines.filter((set) => across(set) > across(set.closest("p, li, td, th, dd, div")) + 1);
    displayed.forEach((box, i) => {
      if (sizes[i] < 99) box.style.fontSize = `${sizes[i]}%`;
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
    document.querySelectorAll("table.prose").forEach(label);
    refit();
    addEventListener("resize", refit);
    document.addEventListener("toggle", fit, true);
  });
}
