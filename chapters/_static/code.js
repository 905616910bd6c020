/* A switch in the page's head that opens or folds all code, and stays as it was left; a link into what is folded opens it. */
{
  const KEY = "code";
  const folded = () => document.querySelectorAll("details.hide");
  // From disk some browsers keep nothing; then the switch works for the page alone.
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

  const reveal = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    const inside = target.matches(".cell") && target.querySelector("details.hide");
    for (let around = inside || target.closest("details"); around; around = around.parentElement.closest("details")) {
      around.open = true;
    }
  };

  const setUp = (head) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "btn btn-sm pst-navbar-icon code-switch";
    button.textContent = "Code";
    const turn = (open) => {
      for (const details of folded()) details.open = open;
      button.setAttribute("aria-pressed", open);
      button.title = open ? "Fold all code" : "Open all code";
    };
    button.addEventListener("click", () => {
      const open = button.getAttribute("aria-pressed") !== "true";
      turn(open);
      remember(open);
    });
    head.prepend(button);
    turn(remembered());
  };

  addEventListener("DOMContentLoaded", () => {
    const head = document.querySelector(".article-header-buttons");
    if (head && folded().length) setUp(head);
    reveal();
  });
  addEventListener("hashchange", reveal);
}
