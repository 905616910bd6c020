/* Preview the statement, equation or term of a reference when the pointer rests on it or it has the focus. */
{
  const WAIT = 250; // milliseconds that a pointer must rest on a link
  const root = new URL(document.documentElement.dataset.content_root || "./", location.href).href;
  let loading, waiting, box, near;

  const load = () => (loading ??= new Promise((done) => {
    const script = document.createElement("script");
    script.src = `${root}_static/previews.js`;
    script.onload = () => done(window.previews);
    script.onerror = () => done({});
    document.head.append(script);
  }));

  const hide = () => {
    clearTimeout(waiting);
    near?.removeAttribute("aria-describedby");
    box?.remove();
    box = near = undefined;
  };

  const place = (link) => {
    const at = link.getClientRects()[0] ?? link.getBoundingClientRect();
    const width = Math.min(34 * 16, innerWidth - 16);
    box.style.width = `${width}px`;
    box.style.left = `${scrollX + Math.max(8, Math.min(at.left, innerWidth - width - 8))}px`;
    const below = at.bottom + box.offsetHeight + 8 < innerHeight || at.top < box.offsetHeight + 8;
    box.style.top = `${scrollY + (below ? at.bottom + 6 : at.top - box.offsetHeight - 6)}px`;
  };

  const show = async (link) => {
    const { href } = link;
    const shown = href.startsWith(root) && (await load())[decodeURIComponent(href.slice(root.length))];
    if (!shown || near !== link) return;
    box = document.createElement("div");
    box.id = "preview";
    box.setAttribute("role", "tooltip");
    box.innerHTML = shown;
    document.querySelector("main").append(box);
    link.setAttribute("aria-describedby", "preview");
    place(link);
    await window.MathJax?.typesetPromise?.([box]);
    if (near === link) place(link);
  };

  const ask = (link, wait) => {
    if (link === near) return;
    hide();
    near = link;
    waiting = setTimeout(() => show(link), wait);
  };

  const wanted = (event) => event.target.closest?.('.bd-article a[href*="#"]:not(.headerlink)');

  addEventListener("pointerover", (event) => {
    const link = event.pointerType !== "touch" && wanted(event);
    if (link) ask(link, WAIT);
    else if (near && !box?.contains(event.target)) hide();
  });
  addEventListener("focusin", (event) => (wanted(event) ? ask(wanted(event), 0) : hide()));
  addEventListener("focusout", hide);
  addEventListener("keydown", (event) => event.key === "Escape" && hide());
}
