/* Paper is white: while a page prints it has the light theme, whatever it has on the screen. */
{
  const root = document.documentElement.dataset;
  let onScreen;
  addEventListener("beforeprint", () => {
    onScreen = root.theme;
    root.theme = "light";
  });
  addEventListener("afterprint", () => {
    root.theme = onScreen;
  });
}
