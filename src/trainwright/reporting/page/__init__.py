"""Result documents as one page to share: `page.page_html` writes it, a module per kind fills it."""
