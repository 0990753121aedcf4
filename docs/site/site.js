// What the theme leaves out for those who read by ear or by keyboard.
addEventListener("DOMContentLoaded", () => {
  for (const heading of document.querySelectorAll('.caption[role="heading"]')) heading.setAttribute("aria-level", "2");
  document.querySelector(".sidebar-drawer")?.setAttribute("aria-label", "All pages");
  document.querySelector(".toc-drawer")?.setAttribute("aria-label", "On this page");
  for (const block of document.querySelectorAll("pre, .table-wrapper")) {
    if (block.scrollWidth > block.clientWidth) block.tabIndex = 0;
  }
});
