/* Draws figures from the data that stand in the page. plotly.js is unpacked for the first of them, after the page's words. */
(() => {
  if (window.odcsimFigures) return;
  let plotly = null;
  const unpacked = async () => {
    if (window.Plotly) return window.Plotly;
    const text = atob(document.getElementById("plotly-packed").textContent);
    const bytes = Uint8Array.from(text, (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
    window.odcsimFigures.unpacked = performance.now();
    return window.Plotly;
  };
  const painted = () => new Promise((go) => requestAnimationFrame(() => setTimeout(go, 0)));
  /* On a telephone: names of rows in two lines, and room for a legend of several. */
  const narrowed = (place, layout) => {
    const twoLines = (names) => names.map((name) => name.replace(" + ", "<br>+ "));
    for (const name of Object.keys(layout).filter((key) => /^[xy]axis/.test(key))) {
      const axis = layout[name];
      axis.tickfont = { ...axis.tickfont, size: 10 };
      if (name.startsWith("x")) axis.nticks = 8;
      const { categoryarray: rows, ticktext: texts } = axis;
      if (rows) Object.assign(axis, { tickvals: rows, ticktext: twoLines(rows) });
      else if (texts) axis.ticktext = twoLines(texts);
    }
    layout.legend = { ...layout.legend, font: { size: 11 } };
    layout.height += 50;
    place.style.height = `${layout.height}px`;
  };
  const draw = async (name) => {
    const place = document.getElementById(name);
    if (place.dataset.drawn) return;
    place.dataset.drawn = "begun";
    const { data, layout } = JSON.parse(document.querySelector(`script[data-figure="${name}"]`).textContent);
    if (place.clientWidth < 560) narrowed(place, layout);
    plotly ??= painted().then(unpacked);
    const library = await plotly;
    place.replaceChildren();
    await library.newPlot(place, data, layout, { responsive: true, displayModeBar: false });
    place.dataset.drawn = "yes";
    await painted();
  };
  const all = async () => {
    for (const place of document.querySelectorAll(".figure[id]:not([data-drawn])")) await draw(place.id);
    document.documentElement.dataset.figures = "drawn";
  };
  window.odcsimFigures = { draw, all };
})();
