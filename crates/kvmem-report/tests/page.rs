//! Whole pages: well-formed, self-contained; all input is shown and escaped.

use kvmem_report::{Bars, Chapter, Heat, Lines, Page, Scale, Section, Spans, Table, Verdict};

/// Creates a page with every kind of part, and `text` wherever text is possible.
fn page(text: &str) -> String {
    let mut bars = Bars::new(text, text, Scale::Log);
    bars.group(text).bar(text, 5.25).variant(text, text, 146.0).bound(200.0);
    bars.group("second").bar("other", 0.0).bar("none", f64::NAN);
    let mut lines = Lines::new(text, (text, Scale::Log), (text, Scale::Linear));
    lines.line(text, [(1.0, 2.0), (10.0, 3.0), (0.0, 4.0)]);
    lines.faint(text, [(2.0, 3.0)]);
    let mut spans = Spans::new(text, text);
    spans.span(text, text, 0.0, 0.25);
    spans.span(text, "other", 0.25, 0.25);
    spans.span(text, text, f64::NAN, 1.0);
    let mut heat = Heat::new(text, text, text, (0.0, 8.0));
    heat.column(0.0, 1.0, [0.0, 0.5, 0.5, 2.0]);
    heat.column(1.0, 2.0, []);
    let verdict = Verdict {
        what: text.to_owned(),
        figure: "0.3403".to_owned(),
        limit: "≤ 0.6".to_owned(),
        met: false,
        at: Some(text.to_owned()),
    };
    let section = Section::new(text)
        .text(text)
        .literal(text)
        .plot(bars.plot())
        .plot(lines.plot())
        .plot(spans.plot())
        .plot(heat.plot())
        .table(Table::new([text, "b"]).row([text, "12,031"]))
        .verdicts([verdict]);
    let second = Section::new("second").text("x");
    let chapter =
        Chapter::new(text).line(text).section(section).section(second.clone()).section(second);
    Page::new(text).chapter(chapter).to_string()
}

/// Returns every tag with its attributes, in order. Fails on elements that are not closed properly.
fn tags(html: &str) -> Vec<&str> {
    let (doctype, mut rest) = html.split_once('\n').unwrap();
    assert_eq!(doctype, "<!doctype html>");
    let (mut open, mut seen) = (Vec::new(), Vec::new());
    while let Some((text, after)) = rest.split_once('<') {
        assert!(!text.contains('>') || open.last() == Some(&"style"), "unescaped: {text}");
        let (tag, after) = after.split_once('>').expect("a tag ends");
        assert!(!tag.contains('<'), "unescaped: {tag}");
        assert_eq!(tag.matches('"').count() % 2, 0, "quotes: {tag}");
        rest = after;
        let name = tag.split([' ', '/']).next().unwrap();
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "</{name}> closes what is open");
            continue;
        }
        seen.push(tag);
        if !tag.ends_with('/') {
            open.push(name);
        }
    }
    assert_eq!(open, [""; 0], "every element is closed");
    seen
}

#[test]
fn a_page_is_well_formed_and_has_every_plot() {
    let html = page("plain");
    let tags = tags(&html);
    let count = |name: &str| tags.iter().filter(|tag| tag.split(' ').next() == Some(name)).count();
    assert_eq!(
        (count("svg"), count("title"), count("desc")),
        (4, 5, 4),
        "a title of the page, and one for each plot"
    );
    assert_eq!((count("figure"), count("table"), count("h3")), (4, 1, 3));
    let labelled = tags.iter().filter(|tag| tag.starts_with("svg ")).all(|tag| {
        tag.contains("role=\"img\"") && tag.contains("viewBox") && tag.contains("aria-labelledby")
    });
    assert!(labelled);
    let ids: Vec<&str> =
        tags.iter().filter_map(|tag| tag.split_once("id=\"")?.1.split('"').next()).collect();
    let mut once = ids.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(once.len(), ids.len(), "ids are unique: {ids:?}");
    for id in
        tags.iter().filter_map(|tag| tag.split_once("aria-labelledby=\"")?.1.split('"').next())
    {
        assert!(id.split(' ').all(|id| ids.contains(&id)), "{id}");
    }
}

#[test]
fn nothing_is_fetched_or_run() {
    let html = page("plain");
    let tags = tags(&html);
    assert!(
        tags.iter().any(
            |tag| tag.contains("Content-Security-Policy") && tag.contains("default-src 'none'")
        )
    );
    for bad in ["://", "url(", "@import", "<script", "javascript:", " on", "srcset"] {
        let found = match bad {
            " on" => tags.iter().any(|tag| tag.contains(" onload") || tag.contains(" onclick")),
            bad => html.contains(bad),
        };
        assert!(!found, "{bad}");
    }
    let addresses = tags.iter().flat_map(|tag| tag.split(' ')).filter_map(|attribute| {
        attribute.strip_prefix("href=").or_else(|| attribute.strip_prefix("src="))
    });
    for address in addresses {
        assert!(address.starts_with("\"#") || address.starts_with("\"data:,"), "{address}");
    }
}

#[test]
fn colours_are_variables_that_the_style_knows() {
    let html = page("plain");
    let (style, body) = html.split_once("</style>").unwrap();
    assert!(style.contains("prefers-color-scheme: dark"));
    assert!(!body.contains("\"#0000"), "a number was left");
    let variables = body.split("var(").skip(1).filter_map(|rest| rest.split(')').next());
    let mut seen = 0;
    for variable in variables {
        let set = style.matches(&format!("{variable}: #")).count();
        assert_eq!(set, 2, "{variable} has a light and a dark colour");
        seen += 1;
    }
    assert!(seen > 20, "{seen}");
}

#[test]
fn input_is_shown_as_text() {
    let bad = "\"><script>alert('1')</script>&amp; <b x='\"'>#000001\u{1}";
    let html = page(bad);
    tags(&html);
    assert!(!html.contains("<script") && !html.contains("<b x"), "input became markup");
    let shown = "&quot;&gt;&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;\
                 &amp;amp; &lt;b x=&#39;&quot;&#39;&gt;#000001\u{fffd}";
    assert!(html.matches(shown).count() > 20, "input is shown");
}

#[test]
fn every_figure_is_there_as_text() {
    let html = page("plain");
    for figure in [
        "5.25",
        "146.0",
        "12,031",
        "0.3403",
        "≤ 0.6",
        "MISSED",
        "bound 200.0",
        "between 2.00 and 3.00",
    ] {
        assert!(html.contains(figure), "{figure}");
    }
}

#[test]
fn empty_plots_are_no_error() {
    let plots = [
        Bars::new("a", "b", Scale::Log).plot(),
        Bars::new("a", "b", Scale::Linear).plot(),
        Lines::new("a", ("b", Scale::Log), ("c", Scale::Log)).plot(),
        Spans::new("a", "b").plot(),
        Heat::new("a", "b", "c", (0.0, 0.0)).plot(),
    ];
    let section = plots.into_iter().fold(Section::new("all"), Section::plot);
    let html = Page::new("none").chapter(Chapter::new("none").section(section)).to_string();
    tags(&html);
    assert!(!html.contains("not drawn"), "{html}");
    let empty = Page::new("none")
        .chapter(Chapter::new("c").section(Section::new("gone").table(Table::default())));
    assert!(!empty.to_string().contains("gone"), "an empty section is skipped");
}

/// Returns an attribute of a tag.
fn attribute<'a>(tag: &'a str, name: &str) -> Option<&'a str> {
    tag.split_once(&format!(" {name}=\""))?.1.split('"').next()
}

fn number(tag: &str, name: &str) -> f64 {
    attribute(tag, name)
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| panic!("no {name}: {tag}"))
}

/// Returns the height and the texts (tag and content) of each drawing.
fn drawings(html: &str) -> Vec<(f64, Vec<(&str, &str)>)> {
    let drawings = html.split("<svg role=\"img\"").skip(1).map(|rest| {
        let svg = rest.split("</svg>").next().unwrap();
        let (head, body) = svg.split_once('>').unwrap();
        let view: Vec<f64> = attribute(head, "viewBox")
            .unwrap()
            .split(' ')
            .map(|part| part.parse().unwrap())
            .collect();
        assert_eq!((view[0], view[1], view[2]), (0.0, 0.0, WIDTH));
        let texts = body.split("<text").skip(1).map(|text| {
            let (tag, rest) = text.split_once('>').unwrap();
            (tag, rest.split("</text>").next().unwrap().trim())
        });
        (view[3], texts.collect())
    });
    drawings.collect()
}

/// The width of a drawing.
const WIDTH: f64 = 520.0;
/// The width of a letter in the widest common font, relative to the font's size.
const LETTER: f64 = 0.64;

/// Creates plots whose labels, names and figures are as long as possible.
fn wide_plots() -> String {
    let long = "a name of a group of bars that is so long that it does not fit on one line of \
                a phone, 500 GiB";
    let mut plots = Vec::new();
    for scale in [Scale::Linear, Scale::Log, Scale::Count] {
        for max in [1.0, 2000.0, 12_345.678, 99_999_999.0, 1e12, 1.9e15] {
            let mut bars = Bars::new("bars", long, scale);
            bars.group(long).bar("one", max).bar("two", max / 1e5).bound(1.1 * max);
            bars.group("word".repeat(40)).bar("one", max / 2.0);
            plots.push(bars.plot());
            for other in [Scale::Linear, Scale::Log] {
                let mut lines = Lines::new("lines", (long, scale), (long, other));
                lines.line("one", [(max / 1e5, max / 1e5), (max, max)]);
                plots.push(lines.plot());
            }
        }
    }
    for max in [0.002, 1.0, 2000.0, 1e9] {
        let mut spans = Spans::new("spans", long);
        spans.span(long, "kind", 0.0, max);
        spans.span("short", "kind", max / 2.0, max);
        let mut heat = Heat::new("heat", long, long, (0.0, max));
        heat.column(0.0, max, [0.0, 0.5]);
        plots.extend([spans.plot(), heat.plot()]);
    }
    let section = plots.into_iter().fold(Section::new("all"), Section::plot);
    Page::new("wide").chapter(Chapter::new("all").section(section)).to_string()
}

#[test]
fn every_text_is_within_its_drawing() {
    let html = wide_plots();
    let mut seen = 0;
    for (height, texts) in drawings(&html) {
        assert!(!texts.is_empty());
        for (tag, text) in texts {
            let size = number(tag, "font-size");
            let width = LETTER * size * text.chars().count() as f64;
            let x = number(tag, "x");
            let left = match attribute(tag, "text-anchor") {
                Some("middle") => x - width / 2.0,
                Some("end") => x - width,
                _ => x,
            };
            assert!(
                left >= -1.0 && left + width <= WIDTH + 1.0,
                "{left} + {width}: {text:?} {tag}"
            );
            let y = number(tag, "y");
            assert!(y >= size / 3.0 && y <= height, "{y} of {height}: {text:?} {tag}");
            assert!(!tag.contains("rotate"), "{tag}");
            seen += 1;
        }
    }
    assert!(seen > 500, "{seen}");
}

/// On a phone of 390 pixels a drawing has 334: the page and the figure have margins of 16 and 12 on
/// both sides.
#[test]
fn text_is_large_enough_on_a_phone() {
    let html = wide_plots();
    let (style, _) = html.split_once("</style>").unwrap();
    assert!(
        style.contains("margin: 0 auto; padding: 1rem;")
            && style.contains("figure {\n  margin: 0; padding: 0.75rem;")
    );
    for (_, texts) in drawings(&html) {
        for (tag, _) in texts {
            let pixels = number(tag, "font-size") * 334.0 / WIDTH;
            assert!(pixels >= 11.0, "{pixels}: {tag}");
        }
    }
}

#[test]
fn labels_do_not_overlap() {
    for (_, texts) in drawings(&wide_plots()) {
        let mut boxes: Vec<(f64, f64, f64, &str)> = Vec::new();
        for (tag, text) in texts {
            let size = number(tag, "font-size");
            // In a common font, not the widest.
            let width = 0.5 * size * text.chars().count() as f64;
            let (x, y) = (number(tag, "x"), number(tag, "y"));
            let left = match attribute(tag, "text-anchor") {
                Some("middle") => x - width / 2.0,
                Some("end") => x - width,
                _ => x,
            };
            for &(other_left, other_width, other_y, other) in &boxes {
                let apart = left >= other_left + other_width || other_left >= left + width;
                assert!(apart || (y - other_y).abs() >= 0.7 * size, "{text:?} on {other:?}");
            }
            boxes.push((left, width, y, text));
        }
    }
}
