/* A switch in the page's head opens or folds all code and checks, and its setting is remembered; a link into a fold
   opens the fold. */
{
  const KEY = "code";
  const HEAD = 64; // height in pixels of the bar at the top
  const LONGEST = 20_000; // milliseconds that a page may need to settle
  const folded = () => document.querySelectorAll("details.fold:is(.code, .result)");
  // For pages opened from disk, some browsers store nothing; then the switch works only for the current page.
  const remembered = () => {
    try {
      return localStorage.getItem(KEY) === "open";
    } catch {
      return false;
    }
  };
  const remember = (open) => {
    try {
      localStorage.setItem(KEY, open ? "open" : "folded");
    } catch {}
  };

  // Open the folds that a link leads into: some browsers open only the folds around it, and some not on page load.
  const asked = () => document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const reveal = () => {
    const target = asked();
    const own = target?.querySelector(":scope > details.fold:first-child");
    const closed = [own || target?.closest("details:not([open])")].filter(Boolean);
    for (const fold of closed) {
      for (let around = fold; around; around = around.parentElement.closest("details")) around.open = true;
    }
    if (closed.length) target.scrollIntoView();
  };

  // Keep the target in view until the reader moves: formulas and pictures still change the layout after the jump.
  const hold = () => {
    const settling = new ResizeObserver(() => asked()?.scrollIntoView({ behavior: "instant" }));
    const stop = () => settling.disconnect();
    settling.observe(document.querySelector(".bd-article"));
    for (const moves of ["wheel", "touchstart", "pointerdown", "keydown"]) {
      addEventListener(moves, stop, { once: true, passive: true });
    }
    setTimeout(stop, LONGEST);
  };

  // Keep the element at the top of the window in place while folds around it change; not every browser does this.
  const inPlace = (change) => {
    const parts = [...document.querySelectorAll(".bd-article section > :not(section)")];
    const first = parts.find((part) => part.checkVisibility() && part.getBoundingClientRect().bottom > HEAD);
    const top = () => first.getBoundingClientRect().top;
    const before = first.matches("details") ? Math.max(HEAD, top()) : top();
    change();
    scrollBy({ top: top() - before, behavior: "instant" });
  };

  const setUp = (head) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "btn btn-sm pst-navbar-icon code-switch";
    button.textContent = "Code";
    const turn = (open) => {
      for (const details of folded()) details.open = open;
      button.setAttribute("aria-pressed", open);
      button.title = open ? "Fold all code and checks" : "Open all code and checks";
    };
    button.addEventListener("click", () => {
      const open = button.getAttribute("aria-pressed") !== "true";
      inPlace(() => turn(open));
      remember(open);
    });
    head.prepend(button);
    turn(remembered());
  };

  addEventListener("DOMContentLoaded", () => {
    const head = document.querySelector(".article-header-buttons");
    if (head && folded().length) setUp(head);
    reveal();
    // A reader who comes back finds the page at the previous position.
    if (asked() && performance.getEntriesByType("navigation")[0].type === "navigate") hold();
    // The theme's back-to-top button must not cover a control.
    const seen = new IntersectionObserver((parts) =>
      parts.forEach((part) => part.target.toggleAttribute("data-seen", part.isIntersecting))
    );
    document.querySelectorAll(".hold, .network, .explore").forEach((part) => seen.observe(part));
  });
  addEventListener("hashchange", reveal);
}
