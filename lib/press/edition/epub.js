/* Cut the settled document into chapters of XHTML: file, title, what it holds, body.  What only scripts can move goes. */
() => {
  // Few readers know mathvariant, and a bold 1 is not 1: letters of their own are known to all.
  const FIRST = { bold: "𝐀𝐚𝟎𝛂", "bold-italic": "𝑨𝒂𝟎𝜶", "double-struck": "𝔸𝕒𝟘", script: "𝒜𝒶" };
  const ALPHABETS = ["A", "a", "0", "α"].map((first, i) => [first.codePointAt(0), [26, 26, 10, 25][i]]);
  const OLDER = {
    0x1d53a: "ℂ", 0x1d53f: "ℍ", 0x1d545: "ℕ", 0x1d547: "ℙ", 0x1d548: "ℚ", 0x1d549: "ℝ", 0x1d551: "ℤ", 0x1d49d: "ℬ",
    0x1d4a0: "ℰ", 0x1d4a1: "ℱ", 0x1d4a3: "ℋ", 0x1d4a4: "ℐ", 0x1d4a7: "ℒ", 0x1d4a8: "ℳ", 0x1d4ad: "ℛ",
  };
  const styled = (letter, variant) => {
    const code = letter.codePointAt(0);
    const i = ALPHABETS.findIndex(([first, letters]) => code >= first && code < first + letters);
    const start = [...(FIRST[variant] ?? "")][i];
    const own = start && start.codePointAt(0) + code - ALPHABETS[i][0];
    return own ? (OLDER[own] ?? String.fromCodePoint(own)) : letter;
  };

  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  for (const set of all("mjx-container")) set.replaceWith(set.querySelector("math"));
  for (const sign of all("math [mathvariant]:not([mathvariant='normal'])")) {
    sign.textContent = [...sign.textContent].map((letter) => styled(letter, sign.getAttribute("mathvariant"))).join("");
    sign.removeAttribute("mathvariant");
  }
  for (const gone of all("script, input, select, textarea, button, [hidden], .live-spoken, .live-row, .live-try")) gone.remove();
  for (const drawn of all("svg [style*='display: none']")) drawn.remove();
  // The styles of what scripts have drawn stay behind.
  const LOOKS = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-size"];
  for (const drawn of all("svg")) drawn.setAttribute("role", "img");
  const HANDLES = ["role", "tabindex", "aria-valuenow", "aria-valuetext", "aria-valuemin", "aria-valuemax"];
  for (const drawn of all("svg *")) {
    for (const handle of HANDLES) drawn.removeAttribute(handle);
    const seen = getComputedStyle(drawn);
    drawn.setAttribute("style", LOOKS.map((look) => `${look}: ${seen.getPropertyValue(look)}`).join("; "));
  }
  const parts = all(".title-page, .imprint, .book-contents, .chapter");
  const file = (part) => {
    if (part.matches(".book-contents")) return "nav.xhtml";
    const mark = [...part.classList].find((name) => name.startsWith("page-")) ?? part.classList[1];
    return `${mark.replace("page-", "")}.xhtml`;
  };

  // Contents are a list in a list, which readers show as they like.
  const list = (entries, depth) => {
    const made = document.createElement("ol");
    while (entries.length && Number(entries[0].dataset.depth) >= depth) {
      const item = document.createElement("li");
      const entry = entries.shift();
      entry.textContent = entry.firstElementChild.textContent;
      item.append(entry);
      if (entries.length && Number(entries[0].dataset.depth) > depth) item.append(list(entries, depth + 1));
      made.append(item);
    }
    return made;
  };
  const contents = document.querySelector(".book-contents");
  const entries = all("p a", contents);
  // A part begins where its first chapter does, and no link may lead back.
  entries.forEach((entry, i) => entry.matches(".part *") && entry.setAttribute("href", entries[i + 1].getAttribute("href")));
  const nav = list(entries, 0);
  contents.replaceChildren(contents.querySelector("h1"), nav);
  contents.setAttribute("epub:type", "toc");
  for (const heading of all("h1 a", contents)) heading.replaceWith(heading.textContent);

  const home = new Map(parts.flatMap((part) => [part, ...all("[id]", part)].map((named) => [named.id, file(part)])));
  for (const link of all("a[href^='#']")) {
    const goal = decodeURIComponent(link.hash.slice(1));
    link.setAttribute("href", `${home.get(goal)}#${goal}`);
  }
  const write = new XMLSerializer();
  return parts.map((part) => ({
    file: file(part),
    title: part.querySelector(".level-1, p").textContent,
    kinds: [part === contents && "nav", part.querySelector("math") && "mathml", part.querySelector("svg") && "svg"]
      .filter(Boolean)
      .join(" "),
    body: write.serializeToString(part),
  }));
};
