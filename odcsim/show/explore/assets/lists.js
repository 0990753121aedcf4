// Dash calls its radio buttons a listbox of options. They are radio buttons with labels, in a fieldset with a legend.
new MutationObserver(() => {
  for (const one of document.querySelectorAll(".controls fieldset :is([role], [aria-selected])")) {
    if (one.matches(".problem")) continue;
    one.removeAttribute("role");
    one.removeAttribute("aria-selected");
  }
}).observe(document, { subtree: true, childList: true, attributeFilter: ["role", "aria-selected"] });
