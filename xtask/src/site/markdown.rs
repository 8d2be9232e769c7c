//! *Markdown*: the code blocks, links and headings of a page, with their places in its text.

use std::ops::Range;

use pulldown_cmark::{BrokenLink, CodeBlockKind, Event, LinkType, Options, Parser, Tag, TagEnd};

/// A fenced block of code.
#[derive(Debug)]
pub(super) struct Block {
    /// The line of its fence, from 1 on.
    pub(super) line: usize,
    /// What stands behind the fence: the language, and what rustdoc makes of it.
    pub(super) info: String,
    pub(super) code: String,
    /// The comment `<!-- … -->` on the line above.
    pub(super) comment: Option<String>,
    /// Its place, fences included.
    pub(super) place: Range<usize>,
}

/// A link or an image.
#[derive(Debug)]
pub(super) struct Link {
    /// The text between the brackets, as it is written.
    pub(super) text: String,
    pub(super) target: String,
    /// Whether it is `[text]` without a target: rustdoc looks for an item of this name.
    pub(super) is_bare: bool,
    pub(super) is_image: bool,
    pub(super) place: Range<usize>,
}

/// What a page consists of.
#[derive(Debug, Default)]
pub(super) struct Outline {
    pub(super) blocks: Vec<Block>,
    pub(super) links: Vec<Link>,
    /// The place of each heading, and its level.
    pub(super) headings: Vec<(Range<usize>, usize)>,
}

/// Returns what a page consists of.
pub(super) fn outline(text: &str) -> Outline {
    let bare = |link: BrokenLink<'_>| Some((link.reference.into_string().into(), "".into()));
    let options = Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH;
    let parser = Parser::new_with_broken_link_callback(text, options, Some(bare));
    let mut outline = Outline::default();
    let mut comment: Option<(usize, String)> = None;
    for (event, place) in parser.into_offset_iter() {
        match event {
            Event::Html(html) => {
                let inner = html.trim().strip_prefix("<!--").and_then(|h| h.strip_suffix("-->"));
                let end = place.start + html.trim_end().len();
                comment = inner.map(|inner| (end, inner.trim().to_owned()));
            }
            Event::Start(Tag::CodeBlock(kind)) => {
                let above = comment.take().filter(|(end, _)| {
                    text[*end..].find(|c: char| !c.is_whitespace()) == Some(place.start - end)
                        && text[*end..place.start].matches('\n').count() <= 1
                });
                outline.blocks.push(Block {
                    line: text[..place.start].matches('\n').count() + 1,
                    info: match kind {
                        CodeBlockKind::Fenced(info) => info.into_string(),
                        CodeBlockKind::Indented => "text".to_owned(),
                    },
                    code: String::new(),
                    comment: above.map(|(_, comment)| comment),
                    place,
                });
            }
            Event::Text(code) if in_block(&outline, &place) => {
                outline.blocks.last_mut().expect("it was just found").code += &code;
            }
            Event::Start(Tag::Link { link_type, dest_url, .. }) => {
                outline.links.push(link(text, link_type, &dest_url, place, false));
            }
            Event::Start(Tag::Image { link_type, dest_url, .. }) => {
                outline.links.push(link(text, link_type, &dest_url, place, true));
            }
            Event::Start(Tag::Heading { level, .. }) => {
                outline.headings.push((place, level as usize));
            }
            Event::End(TagEnd::CodeBlock) => comment = None,
            _ => {}
        }
    }
    outline
}

/// Whether a text lies in the last block.
fn in_block(outline: &Outline, place: &Range<usize>) -> bool {
    outline.blocks.last().is_some_and(|block| block.place.contains(&place.start))
}

fn link(text: &str, kind: LinkType, target: &str, place: Range<usize>, is_image: bool) -> Link {
    let source = &text[place.clone()];
    let open = 1 + usize::from(is_image);
    let close = match kind {
        LinkType::Inline => source.rfind("]("),
        LinkType::Reference | LinkType::ReferenceUnknown => source.rfind("]["),
        LinkType::Autolink | LinkType::Email => Some(source.len() - 1),
        _ => source.find(']'),
    };
    let is_bare = matches!(
        kind,
        LinkType::ShortcutUnknown | LinkType::CollapsedUnknown | LinkType::ReferenceUnknown
    );
    Link {
        text: source[open.min(source.len())..close.unwrap_or(source.len())].to_owned(),
        target: target.to_owned(),
        is_bare,
        is_image,
        place,
    }
}

/// Replaces places of a text.
pub(super) fn replace(text: &str, mut edits: Vec<(Range<usize>, String)>) -> String {
    edits.sort_by_key(|(place, _)| place.start);
    let mut new = String::with_capacity(text.len() + 256);
    let mut at = 0;
    for (place, by) in edits {
        // A link within a link's text goes with it.
        if place.start >= at {
            new.push_str(&text[at..place.start]);
            new.push_str(&by);
            at = place.end;
        }
    }
    new.push_str(&text[at..]);
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = r#"# Head

[a `b`](c.md#d), [`E`], ![p](q.png), [f][g]

[g]: h.md

<!-- not run: no NIC -->
```bash
ls [x](y)
```

<!-- far -->

```rust,no_run
f()
```
"#;

    #[test]
    fn links_have_their_texts_and_targets() {
        let links = outline(PAGE).links;
        let pairs: Vec<_> = links.iter().map(|link| (&*link.text, &*link.target)).collect();
        let expected = [("a `b`", "c.md#d"), ("`E`", "`E`"), ("p", "q.png"), ("f", "h.md")];
        assert_eq!(pairs, expected);
        assert!(links[1].is_bare && !links[0].is_bare && links[2].is_image);
    }

    #[test]
    fn blocks_have_the_comment_right_above() {
        let blocks = outline(PAGE).blocks;
        assert_eq!(blocks.len(), 2);
        assert_eq!(blocks[0].comment.as_deref(), Some("not run: no NIC"));
        assert_eq!((&*blocks[0].info, &*blocks[0].code), ("bash", "ls [x](y)\n"));
        assert_eq!((&*blocks[1].info, blocks[1].comment.as_deref()), ("rust,no_run", None));
        assert_eq!(blocks[0].line, 8);
    }

    #[test]
    fn places_are_replaced_and_the_rest_stays() {
        let links = outline(PAGE).links;
        let edits = vec![(links[0].place.clone(), "L".to_owned())];
        assert_eq!(replace(PAGE, edits), PAGE.replace("[a `b`](c.md#d)", "L"));
    }
}
