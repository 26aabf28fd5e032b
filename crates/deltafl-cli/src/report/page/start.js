// Starts the page, in the light that the reader prefers.

const root = document.documentElement;
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
let chosenTheme = null;
const applyTheme = () => {
  root.dataset.theme = chosenTheme ?? (prefersDark.matches ? "dark" : "light");
  known.clear();
};
applyTheme();

// The charting library, 4.7 MB of it, is read once the page stands and its controls answer; a print cannot wait.
function loadPlotly() {
  if (window.Plotly) return;
  const script = document.createElement("script");
  script.textContent = document.getElementById("plotly").textContent;
  document.head.append(script);
}

readPage().then((page) => {
  const shown = controls(page);
  const relit = () => { applyTheme(); shown.everything(); };
  prefersDark.addEventListener("change", relit);
  document.getElementById("theme").addEventListener("click", () => {
    chosenTheme = root.dataset.theme === "dark" ? "light" : "dark";
    relit();
  });
  // Paper is white, as wide as the style sheet says, and shows every chart, also those that nobody scrolled to.
  let before = null;
  addEventListener("beforeprint", () => {
    before = chosenTheme;
    chosenTheme = "light";
    root.dataset.print = "true";
    loadPlotly();
    relit();
    shown.drawNow();
  });
  addEventListener("afterprint", () => {
    chosenTheme = before;
    delete root.dataset.print;
    relit();
  });
  root.dataset.interactive = String(Math.round(performance.now()));
  requestAnimationFrame(() => setTimeout(loadPlotly));
}).catch((error) => {
  console.error(error);
  document.querySelector("main").prepend(element("p", { class: "caveat" }, `The charts could not be drawn: ${error.message}`));
});
