/* A switch in the page's head that opens or folds all code and checks, and stays as it was left; a link into what is folded opens it;
   and a picture that is at the head of the page folds where it comes again. */
{
  const KEY = "code";
  const folded = () => document.querySelectorAll("details.fold:is(.code, .result)");
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

  // Browsers open what a link leads into, some of them only what is around it, and some not when the page loads.
  const reveal = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const own = target?.querySelector(":scope > details.fold:first-child");
    const closed = [own || target?.closest("details:not([open])")].filter(Boolean);
    for (const fold of closed) {
      for (let around = fold; around; around = around.parentElement.closest("details")) around.open = true;
    }
    if (closed.length) target.scrollIntoView();
  };

  // A picture at the head of the page is not seen a second time until it is asked for.
  const once = (opening) => {
    const name = opening.src.replace(/.*\/|\.\w+$/g, "");
    const picture = document.querySelector(`figure[id="${name}"] img`);
    if (!picture) return;
    const fold = document.createElement("details");
    fold.className = "fold again";
    fold.innerHTML = "<summary>The picture at the head of the page</summary>";
    picture.replaceWith(fold);
    fold.append(picture);
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
      turn(open);
      remember(open);
    });
    head.prepend(button);
    turn(remembered());
  };

  addEventListener("DOMContentLoaded", () => {
    const head = document.querySelector(".article-header-buttons");
    if (head && folded().length) setUp(head);
    document.querySelectorAll("img.opening").forEach(once);
    reveal();
  });
  addEventListener("hashchange", reveal);
}
