/* A formula, a table or code that is wider than its place scrolls: then the keyboard reaches it.  A formula says so to those
   who listen; a table has its caption. */
{
  const SAYS = { role: "group", "aria-label": "Formula, scrolls sideways" };
  const scrolls = (box) =>
    box.scrollWidth > box.clientWidth + 1 && ["auto", "scroll"].includes(getComputedStyle(box).overflowX);
  const reach = () => {
    const boxes = [...document.querySelectorAll(".bd-article :is(.math, mjx-container, table, pre)")];
    // All widths are read before anything is changed.
    for (const [box, reached] of boxes.map((box) => [box, scrolls(box)])) {
      if (reached === (box.tabIndex === 0)) continue; // the theme gives code -1
      for (const [key, value] of Object.entries({ tabindex: 0, ...(box.matches("table, pre") ? {} : SAYS) })) {
        if (reached) box.setAttribute(key, value);
        else box.removeAttribute(key);
      }
    }
  };
  addEventListener("DOMContentLoaded", () => {
    const article = document.querySelector(".bd-article");
    // Formulas that are set, folds that open, a window of another width: each changes the article's height.
    if (article) new ResizeObserver(reach).observe(article);
  });
}
