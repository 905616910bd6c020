/* A displayed formula that is wider than its column is set smaller, down to a size that can still be read; one in a line
   that is wider than the line gets a line of its own. */
{
  const LEAST = 0.55; // of the size it would have
  const fit = () => {
    const wide = [...document.querySelectorAll(".bd-article div.math")].filter((box) => box.checkVisibility());
    for (const box of wide) box.style.fontSize = "";
    // MathJax's own box scrolls too, and is narrower where the number stands beside it.
    const needs = (box) => Math.max(box.scrollWidth, ...[...box.querySelectorAll("mjx-container")].map(
      (set) => set.scrollWidth + box.clientWidth - set.clientWidth));
    const ratios = wide.map((box) => box.clientWidth / needs(box));
    const inline = [...document.querySelectorAll(".bd-article span.math")].filter((set) => set.checkVisibility());
    for (const set of inline) set.classList.remove("wide");
    // A formula in a line that is longer than the line scrolls in a line of its own.
    const room = (set) => set.closest("p, li, td, th, dd, div").getBoundingClientRect();
    const long = inline.filter((set) => set.getBoundingClientRect().width > room(set).width + 1);
    for (const set of long) set.classList.add("wide");
    wide.forEach((box, i) => {
      if (ratios[i] < 1) box.style.fontSize = `${Math.floor(100 * Math.max(LEAST, 0.99 * ratios[i]))}%`;
    });
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
