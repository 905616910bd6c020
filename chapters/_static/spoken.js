/* For those who listen: sliders over pictures have names without their values, which are told beside them, and what a
   picture shows is said once the hand rests. */
{
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
    for (const [selector, setUp] of Object.entries(parts)) document.querySelectorAll(selector).forEach(setUp);
  });
}
