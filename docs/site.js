// Code and tables that are wider than the page scroll with the keyboard too: they take the focus (WCAG 2.2, 2.1.1).
function focusScrolled() {
  for (const one of document.querySelectorAll("pre > code, .md-typeset__scrollwrap")) {
    if (one.scrollWidth > one.clientWidth) one.tabIndex = 0;
    else one.removeAttribute("tabindex");
  }
}
addEventListener("load", focusScrolled);
addEventListener("resize", focusScrolled);
