/* While a page prints, it has the light theme, whatever the screen shows, and folded text is open. */
{
  const root = document.documentElement.dataset;
  let onScreen, opened;
  addEventListener("beforeprint", () => {
    onScreen = root.theme;
    root.theme = "light";
    opened = [...document.querySelectorAll("details:is(.further, .solution):not([open])")];
    for (const fold of opened) fold.open = true;
  });
  addEventListener("afterprint", () => {
    root.theme = onScreen;
    for (const fold of opened) fold.open = false;
  });
}
