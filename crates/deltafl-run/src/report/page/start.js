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

// The numbers are read aside. Until they are there the page counts as loading, because a browser without a window prints
// a page as soon as it has loaded: a document that is open inside holds that back.
const pending = document.body.appendChild(element("iframe", { hidden: "", title: "loading" }));
pending.contentDocument.open();
const loaded = () => {
  pending.contentDocument.close();
  pending.remove();
};

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
    // A page may be told twice.
    if (!root.dataset.print) before = chosenTheme;
    chosenTheme = "light";
    root.dataset.print = "true";
    loadPlotly();
    relit();
    shown.drawNow();
  });
  addEventListener("afterprint", () => {
    chosenTheme = before;
    delete root.dataset.print;
    // The charts take the width of the screen again: a chart minds the size of its window, not that of its place.
    if (window.Plotly) document.querySelectorAll(".js-plotly-plot").forEach((chart) => Plotly.Plots.resize(chart));
    relit();
  });
  root.dataset.interactive = String(Math.round(performance.now()));
  loaded();
  requestAnimationFrame(() => setTimeout(loadPlotly));
}).catch((error) => {
  loaded();
  console.error(error);
  document.querySelector("main").prepend(element("p", { class: "caveat" }, `The charts could not be drawn: ${error.message}`));
});
