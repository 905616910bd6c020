/* Load MathJax only after the page is first painted: on a long page, typesetting blocks everything for a second. */
{
  const folder = document.currentScript.src.replace(/[^/]*$/, "");
  const begin = (done) => {
    const script = document.createElement("script");
    script.src = `${folder}mathjax/tex-chtml.js`;
    script.onload = () => done(MathJax.startup.promise);
    document.head.append(script);
  };
  const drawn = (then) => requestAnimationFrame(() => setTimeout(then));
  const promise = new Promise((done) => addEventListener("DOMContentLoaded", () => drawn(() => begin(done))));
  window.MathJax = Object.assign(window.MathJax ?? {}, { startup: { promise } });
}
