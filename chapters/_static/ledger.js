/* Filter the ledger by status and chapter.  Without this script the page shows all of it. */
{
  // "measured on forty rows" has the status "measured".
  const status = (row) => row.cells[1].textContent.trim().split(" on ")[0];

  const choice = (name, values) => {
    const label = document.createElement("label");
    const select = document.createElement("select");
    select.append(new Option("all", ""), ...values.map((value) => new Option(value)));
    label.append(name, " ", select);
    return [label, select];
  };

  const setUp = (ledger) => {
    const chapters = [...ledger.querySelectorAll(":scope > section")].map((section) => ({
      section,
      title: section.querySelector("h2").firstChild.textContent,
      rows: [...section.querySelectorAll("tbody tr")],
    }));
    const rows = chapters.flatMap((chapter) => chapter.rows);
    const [byStatus, wanted] = choice("Status", [...new Set(rows.map(status))].sort());
    const [byChapter, where] = choice("Chapter", chapters.map((chapter) => chapter.title));
    const count = document.createElement("output");

    const show = () => {
      for (const { section, title, rows } of chapters) {
        for (const row of rows) row.hidden = Boolean(wanted.value) && status(row) !== wanted.value;
        section.hidden = (where.value && title !== where.value) || rows.every((row) => row.hidden);
      }
      const shown = rows.filter((row) => !row.hidden && !row.closest("section").hidden).length;
      const chosen = [wanted.value, where.value && `in “${where.value}”`].filter(Boolean).join(", ");
      count.value = chosen ? `${shown} of ${rows.length} statements: ${chosen}` : `${rows.length} statements`;
    };

    // A link to a hidden chapter or row resets the filter.
    const reveal = () => {
      const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
      if (!target?.closest("#the-ledger [hidden]")) return;
      wanted.value = where.value = "";
      show();
      target.scrollIntoView();
    };

    const form = document.createElement("form");
    form.className = "ledger-filter";
    form.append(byStatus, byChapter, count);
    form.addEventListener("change", show);
    form.addEventListener("submit", (event) => event.preventDefault());
    addEventListener("hashchange", reveal);
    chapters[0].section.before(form);
    show();
  };

  addEventListener("DOMContentLoaded", () => {
    const ledger = document.getElementById("the-ledger");
    if (ledger) setUp(ledger);
  });
}
