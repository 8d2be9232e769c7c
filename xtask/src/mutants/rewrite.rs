//! *Rewrite*: a source file with all of its mutants, each of which a number switches on.
//!
//! A *site* is an expression, a body or an arm of a `match` that mutants change. It becomes a
//! `match` on the number of the active mutant:
//!
//! ```text
//! a + b     (match at(7) { at_ if !matches!(at_, 7 | 8) => (a + b), 7 => (a - b), _ => (a * b) })
//! { body }  { match at(3) { 3 => return true, _ => {} } body }
//! X(y) => z X(y) if at(5) != 5 => z
//! ```
//!
//! The first arm binds a name that no code has: the code in it sees the name.
//!
//! Only the first arm has the sites of the operands, because one mutant is active at a time. Hence
//! the text grows with the depth of the expressions and not with a power of it. Operators that
//! follow each other without parentheses are one site: cargo-mutants changes the text too, and
//! leaves it to the compiler how `a * b + c` binds after a change.

use std::collections::HashMap;
use std::ops::Range;

use anyhow::{Context, Result};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{BinOp, Block, Expr, ExprMatch, Pat, PatGuard, UnOp};

/// A change of the code, from cargo-mutants' list.
pub(super) struct Mutant {
    /// Its number in this run: from one on.
    pub(super) number: u32,
    pub(super) name: String,
    pub(super) file: String,
    pub(super) genre: String,
    pub(super) replacement: String,
    /// Lines and columns of its start and its end, from one on.
    pub(super) span: [(usize, usize); 2],
}

/// A place of the source that mutants change.
struct Site {
    /// The text to replace. It is empty where text is inserted.
    range: Range<usize>,
    /// The text whose errors this site may have caused.
    extent: Range<usize>,
    form: Form,
    /// Positions in the list of the file's mutants.
    mutants: Vec<usize>,
}

#[derive(Clone, Copy, PartialEq)]
enum Form {
    Body,
    Arm,
    Expression,
}

/// A file with its mutants.
#[derive(Default)]
pub(super) struct Rewritten {
    pub(super) text: String,
    /// The mutants of each site. The first one's number is the site's.
    pub(super) sites: Vec<(Range<usize>, Vec<u32>)>,
    /// The mutants' own texts.
    variants: Vec<(Range<usize>, u32)>,
    /// Text from the source: its start here, its start there, its length.
    copied: Vec<(usize, usize, usize)>,
}

impl Rewritten {
    /// Returns the mutants that an error at this byte comes from, and whether it lies in a mutant's
    /// own text, so that no build has this mutant.
    pub(super) fn blamed(&self, byte: usize) -> (&[u32], bool) {
        if let Some((_, number)) = self.variants.iter().find(|(range, _)| range.contains(&byte)) {
            return (std::slice::from_ref(number), true);
        }
        let (here, there, len) =
            self.copied.iter().rfind(|(here, ..)| *here <= byte).copied().unwrap_or_default();
        let source = there + (byte - here).min(len);
        let near = self.sites.iter().filter(|(extent, numbers)| {
            !numbers.is_empty() && extent.start <= source && source <= extent.end
        });
        near.min_by_key(|(extent, _)| extent.len()).map_or((&[], false), |(_, them)| (them, false))
    }

    fn copy(&mut self, source: &str, range: Range<usize>) {
        self.copied.push((self.text.len(), range.start, range.len()));
        self.text.push_str(&source[range]);
    }

    fn variant(&mut self, number: u32, text: &str) {
        let start = self.text.len();
        self.text.push_str(text);
        self.variants.push((start..self.text.len(), number));
    }
}

/// Writes the file with these mutants. A mutant without a site is not switched.
pub(super) fn rewrite(source: &str, mutants: &[&Mutant]) -> Result<Rewritten> {
    let ranges: Vec<Range<usize>> = mutants
        .iter()
        .map(|it| Some(byte_of(source, it.span[0])?..byte_of(source, it.span[1])?))
        .collect::<Option<_>>()
        .context("a mutant lies outside of its file")?;
    let mut wanted: HashMap<_, Vec<usize>> = HashMap::new();
    for (position, it) in mutants.iter().enumerate() {
        wanted.entry((it.genre.as_str(), ranges[position].start)).or_default().push(position);
    }
    let mut finder = Finder { wanted, sites: Vec::new(), chain: None };
    finder.visit_file(&syn::parse_file(source)?);
    finder.sites.retain(|site| !site.mutants.is_empty());
    let mut writer =
        Writer { source, mutants, ranges, sites: &finder.sites, out: Rewritten::default() };
    writer.write(0..source.len());
    let mut out = writer.out;
    out.sites.extend(finder.sites.iter().map(|site| {
        (site.extent.clone(), site.mutants.iter().map(|it| mutants[*it].number).collect())
    }));
    Ok(out)
}

fn byte_of(source: &str, (line, column): (usize, usize)) -> Option<usize> {
    let start = match line {
        1 => 0,
        _ => source.match_indices('\n').nth(line - 2)?.0 + 1,
    };
    Some(source[start..].chars().take(column - 1).map(char::len_utf8).sum::<usize>() + start)
}

/// Finds the sites, each before those within it.
struct Finder<'a> {
    /// The mutants without a site, by genre and first byte.
    wanted: HashMap<(&'a str, usize), Vec<usize>>,
    sites: Vec<Site>,
    /// The site of the operators around this expression.
    chain: Option<usize>,
}

impl Finder<'_> {
    fn take(&mut self, genre: &'static str, start: usize) -> Vec<usize> {
        self.wanted.remove(&(genre, start)).unwrap_or_default()
    }

    fn add(&mut self, form: Form, range: Range<usize>, extent: Range<usize>, them: Vec<usize>) {
        self.sites.push(Site { range, extent, form, mutants: them });
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_block(&mut self, block: &'ast Block) {
        if let Some(first) = block.stmts.first() {
            let start = first.span().byte_range().start;
            let them = self.take("FnValue", start);
            self.add(Form::Body, start..start, block.span().byte_range(), them);
        }
        visit::visit_block(self, block);
    }

    fn visit_expr_match(&mut self, expression: &'ast ExprMatch) {
        self.visit_expr(&expression.expr);
        for arm in &expression.arms {
            let end = arm.pat.span().byte_range().end;
            if !matches!(arm.pat, Pat::Guard(_)) {
                let them = self.take("MatchArm", arm.span().byte_range().start);
                // Without this arm the whole `match` may not be exhaustive.
                let all = expression.span().byte_range();
                self.add(Form::Arm, end..end, all, them);
            }
            self.visit_arm(arm);
        }
    }

    fn visit_pat_guard(&mut self, pattern: &'ast PatGuard) {
        let range = pattern.guard.span().byte_range();
        if !has_let(&pattern.guard) {
            let them = self.take("MatchArmGuard", range.start);
            self.add(Form::Expression, range.clone(), range, them);
        }
        visit::visit_pat_guard(self, pattern);
    }

    fn visit_expr(&mut self, expression: &'ast Expr) {
        let around = self.chain;
        let range = expression.span().byte_range();
        let operator = match expression {
            // `&&` between conditions with `let` is no operator.
            Expr::Binary(it) if !has_let(expression) => Some(("BinaryOperator", it.op.span())),
            Expr::Unary(it) if matches!(it.op, UnOp::Not(_) | UnOp::Neg(_)) => {
                Some(("UnaryOperator", it.op.span()))
            }
            _ => None,
        };
        if operator.is_none() && !matches!(expression, Expr::Cast(_)) {
            self.chain = None;
        } else if self.chain.is_none() {
            self.chain = Some(self.sites.len());
            self.add(Form::Expression, range.clone(), range.clone(), Vec::new());
        }
        if let (Some((genre, span)), Some(chain)) = (operator, self.chain) {
            let them = self.take(genre, span.byte_range().start);
            self.sites[chain].mutants.extend(them);
        } else if let Expr::Struct(it) = expression {
            let fields = it.fields.iter().map(|field| field.span().byte_range().start);
            let them = fields.flat_map(|start| self.take("StructField", start)).collect();
            self.add(Form::Expression, range.clone(), range, them);
        }
        visit::visit_expr(self, expression);
        self.chain = around;
    }
}

fn has_let(expression: &Expr) -> bool {
    match expression {
        Expr::Let(_) => true,
        Expr::Binary(it) if matches!(it.op, BinOp::And(_)) => {
            has_let(&it.left) || has_let(&it.right)
        }
        _ => false,
    }
}

struct Writer<'a> {
    source: &'a str,
    mutants: &'a [&'a Mutant],
    /// The texts that the mutants replace.
    ranges: Vec<Range<usize>>,
    /// The sites that are still to be written.
    sites: &'a [Site],
    out: Rewritten,
}

impl Writer<'_> {
    /// Writes this part of the source with all sites in it.
    fn write(&mut self, range: Range<usize>) {
        let mut done = range.start;
        while let Some((site, rest)) = self.sites.split_first()
            && site.range.end <= range.end
        {
            self.sites = rest;
            self.out.copy(self.source, done..site.range.start);
            self.site(site);
            done = site.range.end;
        }
        self.out.copy(self.source, done..range.end);
    }

    fn site(&mut self, site: &Site) {
        let numbers: Vec<u32> = site.mutants.iter().map(|it| self.mutants[*it].number).collect();
        let active = format!("crate::mutant_switch::at({})", numbers[0]);
        match site.form {
            Form::Arm => self.out.text += &format!(" if {active} != {}", numbers[0]),
            Form::Body => {
                self.out.text += &format!("match {active} {{ ");
                for (position, number) in site.mutants.iter().zip(&numbers) {
                    self.out.text += &format!("{number} => return ");
                    self.out.variant(*number, &self.mutants[*position].replacement);
                    self.out.text.push_str(", ");
                }
                self.out.text.push_str("_ => {} } ");
            }
            Form::Expression => {
                let any = numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(" | ");
                self.out.text += &format!("(match {active} {{ at_ if !matches!(at_, {any}) => (");
                self.write(site.range.clone());
                for (index, (position, number)) in site.mutants.iter().zip(&numbers).enumerate() {
                    match index + 1 == numbers.len() {
                        true => self.out.text.push_str("), _ => ("),
                        false => self.out.text += &format!("), {number} => ("),
                    }
                    let changed = &self.ranges[*position];
                    let before = &self.source[site.range.start..changed.start];
                    let after = &self.source[changed.end..site.range.end];
                    let new = &self.mutants[*position].replacement;
                    self.out.variant(*number, &format!("{before}{new}{after}"));
                }
                self.out.text.push_str(") })");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rewrites a source with the mutants of these texts, each the first of its kind.
    fn rewritten(source: &str, changes: &[(&str, &str, &str)]) -> Rewritten {
        let mutants: Vec<Mutant> = (1..)
            .zip(changes)
            .map(|(number, (genre, text, replacement))| {
                let start = source.find(text).unwrap();
                let at = |byte: usize| {
                    let before = &source[..byte];
                    let line = before.rfind('\n').map_or(0, |it| it + 1);
                    (before.matches('\n').count() + 1, before[line..].chars().count() + 1)
                };
                Mutant {
                    number,
                    name: String::new(),
                    file: String::new(),
                    genre: (*genre).to_owned(),
                    replacement: (*replacement).to_owned(),
                    span: [at(start), at(start + text.len())],
                }
            })
            .collect();
        rewrite(source, &mutants.iter().collect::<Vec<_>>()).unwrap()
    }

    fn text(source: &str, changes: &[(&str, &str, &str)]) -> String {
        rewritten(source, changes).text.replace("crate::mutant_switch::", "")
    }

    #[test]
    fn operators_in_a_row_are_one_site_and_their_operands_have_their_own() {
        let found = text(
            "fn f() -> u8 { a + g(!é) * c }",
            &[
                ("BinaryOperator", "+", "-"),
                ("BinaryOperator", "*", "/"),
                ("UnaryOperator", "!", ""),
            ],
        );
        let inner = "(match at(3) { at_ if !matches!(at_, 3) => (!é), _ => (é) })";
        assert_eq!(
            found,
            format!(
                "fn f() -> u8 {{ (match at(1) {{ at_ if !matches!(at_, 1 | 2) => \
                 (a + g({inner}) * c), 1 => (a - g(!é) * c), _ => (a + g(!é) / c) }}) }}"
            )
        );
    }

    #[test]
    fn a_body_returns_early() {
        let found = text(
            "impl X {\n    fn f(&self) -> bool {\n        self.g()\n    }\n}",
            &[("FnValue", "self.g()", "true"), ("FnValue", "self.g()", "false")],
        );
        assert!(found.contains(
            "{\n        match at(1) { 1 => return true, 2 => return false, _ => {} } self.g()\n"
        ));
    }

    #[test]
    fn arms_guards_and_fields_are_switched() {
        let source = "fn f() { match x { A(b) => 1, C if d => S { e: 2, ..g }, _ => 3 } }";
        let found = text(
            source,
            &[
                ("MatchArm", "A(b) => 1,", ""),
                ("MatchArmGuard", "d", "true"),
                ("StructField", "e: 2,", ""),
            ],
        );
        assert_eq!(
            found,
            "fn f() { match x { A(b) if at(1) != 1 => 1, \
             C if (match at(2) { at_ if !matches!(at_, 2) => (d), _ => (true) }) => \
             (match at(3) { at_ if !matches!(at_, 3) => (S { e: 2, ..g }), \
             _ => (S {  ..g }) }), _ => 3 } }"
        );
    }

    #[test]
    fn conditions_with_let_stay_conditions() {
        let found = text(
            "fn f() { if let Some(x) = y && x > 1 {} }",
            &[("BinaryOperator", "&&", "||"), ("BinaryOperator", "> ", "< ")],
        );
        assert_eq!(
            found,
            "fn f() { if let Some(x) = y && \
             (match at(2) { at_ if !matches!(at_, 2) => (x > 1), _ => (x < 1) }) {} }"
        );
    }

    #[test]
    fn an_error_blames_the_text_of_a_mutant_or_the_site_around_it() {
        let source = "fn f() -> u8 { g(); a + b }";
        let found = rewritten(
            source,
            &[
                ("FnValue", "g(); a + b", "0"),
                ("BinaryOperator", "+", "-"),
                ("BinaryOperator", "+", "*"),
            ],
        );
        let at = |text: &str| found.text.find(text).unwrap();
        assert_eq!(found.blamed(at("a - b")), (&[2][..], true));
        assert_eq!(found.blamed(at("a * b") + 2), (&[3][..], true));
        assert_eq!(found.blamed(at("a + b")), (&[2, 3][..], false));
        assert_eq!(found.blamed(at("g();") + 1), (&[1][..], false));
        assert_eq!(found.blamed(at("return 0") + 7), (&[1][..], true));
        assert!(found.blamed(1).0.is_empty());
    }
}
