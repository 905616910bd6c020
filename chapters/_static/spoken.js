/* For screen readers: a slider's name does not repeat its value; the description of a picture is announced once the
   slider rests; and the parts of the frame get names, for which the theme has no setting. */
{
  const NAMED = {
    "#pst-primary-sidebar": { role: "complementary", ariaLabel: "Contents of the book" },
    "#pst-primary-sidebar-modal": { ariaLabel: "Contents of the book" },
    "#pst-secondary-sidebar-modal": { ariaLabel: "Contents of the page" },
    "#pst-search-dialog": { ariaLabel: "Search" },
    "[role=doc-biblioentry]": { role: "listitem" }, // ARIA deprecates the role that docutils sets
  };
  const REST = 500; // milliseconds
  const slider = (label) => {
    label.querySelector("input").ariaLabel = label.querySelector("span").textContent;
    label.querySelector("output").ariaLive = "off";
  };
  const frames = (figure) => {
    const status = document.createElement("p");
    status.className = "live-spoken";
    status.role = "status";
    figure.append(status);
    let waiting;
    const say = () => (status.textContent = figure.querySelector("img:not([hidden])").alt);
    figure.addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(say, REST);
    });
  };

  addEventListener("DOMContentLoaded", () => {
    const parts = { ".explore-slider": slider, ".explore": frames };
    for (const [selector, named] of Object.entries(NAMED)) {
      document.querySelectorAll(selector).forEach((part) => Object.assign(part, named));
    }
    for (const [selector, setUp] of Object.entries(parts)) document.querySelectorAll(selector).forEach(setUp);
  });
}
