/* A formula, a table or code that is too wide scrolls, and then the keyboard can reach it.  A formula tells screen
   readers so; a table has its caption. */
{
  const SAYS = { role: "group", "aria-label": "Formula, scrolls sideways" };
  const scrolls = (box) =>
    box.scrollWidth > box.clientWidth + 1 && ["auto", "scroll"].includes(getComputedStyle(box).overflowX);
  const reach = () => {
    const boxes = [...document.querySelectorAll(".bd-article :is(.math, mjx-container, table, pre)")];
    // Read all widths before changing anything.
    for (const [box, reached] of boxes.map((box) => [box, scrolls(box)])) {
      if (reached === (box.tabIndex === 0)) continue; // the theme sets -1 for code
      for (const [key, value] of Object.entries({ tabindex: 0, ...(box.matches("table, pre") ? {} : SAYS) })) {
        if (reached) box.setAttribute(key, value);
        else box.removeAttribute(key);
      }
    }
  };
  addEventListener("DOMContentLoaded", () => {
    const article = document.querySelector(".bd-article");
    // Typeset formulas, opened folds and a new window width all change the article's height.
    if (article) new ResizeObserver(reach).observe(article);
  });
}
