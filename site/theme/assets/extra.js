// What the theme's own script leaves out for those who read without a mouse or a screen: tables
// that scroll can be reached by the keyboard, and landmarks and dialogs have names.
function complete() {
  document.querySelectorAll(".md-typeset__scrollwrap").forEach((table, index) => {
    table.tabIndex = 0;
    table.setAttribute("role", "region");
    table.setAttribute("aria-label", `Table ${index + 1}`);
  });
  document.querySelectorAll(".md-code__nav").forEach((buttons, index) => {
    buttons.setAttribute("aria-label", `Code ${index + 1}`);
  });
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
}

// Whenever the theme's script adds an element.
new MutationObserver(complete).observe(document.body, { childList: true, subtree: true });
complete();
