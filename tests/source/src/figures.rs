//! The figures of source files: lines, functions, closures and comments.
//!
//! A line of code has at least one token that is no doc comment; what is compiled for tests alone does not count.

use proc_macro2::{LineColumn, Span, TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Block, Expr, ImplItemFn, Item, ItemFn, Local, Pat, Signature, TraitItemFn};

use crate::is_for_tests;
use crate::module::attributes;

/// Words that a doc comment should not begin with, because its reader expects a verb or a noun.
const QUESTION_WORDS: [&str; 11] = [
    "How", "Of", "What", "When", "Where", "Whether", "Which", "Who", "Whom", "Whose", "Why",
];

/// The figures of some Rust files.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Figures {
    /// Files.
    pub files: usize,
    /// Lines of code.
    pub lines: usize,
    /// Characters in them, without indentation and comments.
    pub characters: usize,
    /// The lines of code of each function, with its signature.
    pub functions: Vec<usize>,
    /// Closures that a `let` gives a name.
    pub named_closures: usize,
    /// Lines of code within the bodies of functions.
    pub lines_in_functions: usize,
    /// Lines with a comment within the bodies of functions.
    pub comments_in_functions: usize,
    /// Doc comments.
    pub doc_comments: usize,
    /// Doc comments that begin with a question word, or with "Of".
    pub question_comments: usize,
}

impl Figures {
    /// The figures of one file with this text.
    ///
    /// # Errors
    /// The text is not Rust.
    pub fn of(text: &str) -> Result<Self, syn::Error> {
        let file = syn::parse_file(text)?;
        let mut lines = Lines::of(text)?;
        let mut tests = Tests::default();
        tests.visit_file(&file);
        for (first, last) in tests.ranges {
            lines.leave_out(first, last);
        }
        let mut found = Found {
            lines: &lines,
            figures: Self::default(),
            bodies: vec![false; lines.all.len()],
        };
        found.visit_file(&file);
        let Found {
            figures, bodies, ..
        } = found;
        let inside = || {
            lines
                .all
                .iter()
                .zip(&bodies)
                .filter(|(_, is_inside)| **is_inside)
                .map(|(line, _)| line)
        };
        let (doc_comments, question_comments) = lines.doc_comments();
        Ok(Self {
            files: 1,
            lines: lines.all.iter().filter(|line| line.code > 0).count(),
            characters: lines.all.iter().map(|line| line.code).sum(),
            lines_in_functions: inside().filter(|line| line.code > 0).count(),
            comments_in_functions: inside().filter(|line| line.has_comment).count(),
            doc_comments,
            question_comments,
            ..figures
        })
    }

    /// Adds the figures of other files.
    pub fn add(&mut self, other: Self) {
        let Self {
            files,
            lines,
            characters,
            functions,
            named_closures,
            lines_in_functions,
            comments_in_functions,
            doc_comments,
            question_comments,
        } = other;
        self.files += files;
        self.lines += lines;
        self.characters += characters;
        self.functions.extend(functions);
        self.named_closures += named_closures;
        self.lines_in_functions += lines_in_functions;
        self.comments_in_functions += comments_in_functions;
        self.doc_comments += doc_comments;
        self.question_comments += question_comments;
    }
}

/// The lines of a file.
struct Lines {
    all: Vec<Line>,
}

/// A line.
#[derive(Default)]
struct Line {
    text: String,
    /// The columns from the first token to the end of the last.
    columns: Option<(usize, usize)>,
    /// The number of characters of code.
    code: usize,
    has_comment: bool,
}

impl Lines {
    fn of(text: &str) -> Result<Self, syn::Error> {
        let all = text.lines().map(|text| Line {
            text: text.to_owned(),
            ..Line::default()
        });
        let mut lines = Self { all: all.collect() };
        let stream: TokenStream = text.parse().map_err(syn::Error::from)?;
        lines.mark_all(stream);
        for line in &mut lines.all {
            line.finish();
        }
        Ok(lines)
    }

    fn mark_all(&mut self, stream: TokenStream) {
        for token in stream {
            match token {
                // The attribute that stands for a doc comment has the place of the comment.
                TokenTree::Group(group) if !self.is_comment(group.span_open().start()) => {
                    self.mark(group.span_open());
                    self.mark_all(group.stream());
                    self.mark(group.span_close());
                }
                TokenTree::Group(_) => {}
                token => self.mark(token.span()),
            }
        }
    }

    /// Notes that there is a token.
    fn mark(&mut self, span: Span) {
        let start = span.start();
        let end = span.end();
        if self.is_comment(start) {
            return;
        }
        for number in start.line..=end.line {
            let Some(line) = self.all.get_mut(number - 1) else {
                continue;
            };
            let first = if number == start.line {
                start.column
            } else {
                0
            };
            let last = if number == end.line {
                end.column
            } else {
                line.text.chars().count()
            };
            let (known_first, known_last) = line.columns.unwrap_or((first, last));
            line.columns = Some((known_first.min(first), known_last.max(last)));
        }
    }

    /// Returns whether a comment begins there. No token but that of a doc comment can begin with two slashes.
    fn is_comment(&self, place: LineColumn) -> bool {
        let Some(line) = self.all.get(place.line - 1) else {
            return false;
        };
        let rest: String = line.text.chars().skip(place.column).take(2).collect();
        rest == "//" || rest == "/*"
    }

    /// Makes lines count as blank, from the first to the last, which are numbered from one.
    fn leave_out(&mut self, first: usize, last: usize) {
        for line in self.all.iter_mut().take(last).skip(first - 1) {
            *line = Line::default();
        }
    }

    fn code(&self, first: usize, last: usize) -> usize {
        self.all
            .iter()
            .take(last)
            .skip(first - 1)
            .filter(|line| line.code > 0)
            .count()
    }

    /// The number of doc comments, and of those that begin with a question word.
    fn doc_comments(&self) -> (usize, usize) {
        let mut all = 0;
        let mut questions = 0;
        let mut is_within = false;
        for line in &self.all {
            let text = line.text.trim_start();
            let text = text
                .strip_prefix("///")
                .or_else(|| text.strip_prefix("//!"));
            let text = text.filter(|text| line.code == 0 && !text.starts_with('/'));
            if let Some(text) = text
                && !is_within
            {
                let word = text.split_whitespace().next().unwrap_or_default();
                all += 1;
                questions += usize::from(QUESTION_WORDS.contains(&word));
            }
            is_within = text.is_some();
        }
        (all, questions)
    }
}

impl Line {
    /// Counts its characters, and looks for a comment beside its tokens.
    fn finish(&mut self) {
        match self.columns {
            Some((first, last)) => {
                self.code = last - first;
                // A blank line in a string is code too.
                self.code = self.code.max(1);
                let rest: String = self.text.chars().skip(last).collect();
                self.has_comment = rest.contains("//") || rest.contains("/*");
            }
            None => self.has_comment = !self.text.trim().is_empty(),
        }
    }
}

/// The lines of what is compiled for tests alone, without the modules in files of their own.
#[derive(Default)]
struct Tests {
    ranges: Vec<(usize, usize)>,
}

impl Tests {
    fn note(&mut self, span: Span) {
        self.ranges.push((span.start().line, span.end().line));
    }
}

impl<'ast> Visit<'ast> for Tests {
    fn visit_item(&mut self, item: &'ast Item) {
        if is_for_tests(attributes(item)) {
            self.note(item.span());
        } else {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
        if is_for_tests(&function.attrs) {
            self.note(function.span());
        } else {
            visit::visit_impl_item_fn(self, function);
        }
    }
}

/// The findings in the syntax of a file.
struct Found<'a> {
    lines: &'a Lines,
    figures: Figures,
    /// For each line, whether it is in the body of a function.
    bodies: Vec<bool>,
}

impl Found<'_> {
    fn function(&mut self, signature: &Signature, block: &Block) {
        let first = block.brace_token.span.open().start().line;
        let last = block.brace_token.span.close().end().line;
        self.figures
            .functions
            .push(self.lines.code(signature.span().start().line, last));
        for is_inside in self.bodies.iter_mut().take(last).skip(first - 1) {
            *is_inside = true;
        }
    }
}

impl<'ast> Visit<'ast> for Found<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_for_tests(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_fn(&mut self, function: &'ast ItemFn) {
        self.function(&function.sig, &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
        if !is_for_tests(&function.attrs) {
            self.function(&function.sig, &function.block);
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_trait_item_fn(&mut self, function: &'ast TraitItemFn) {
        if let Some(block) = &function.default {
            self.function(&function.sig, block);
        }
        visit::visit_trait_item_fn(self, function);
    }

    fn visit_local(&mut self, local: &'ast Local) {
        let name = match &local.pat {
            Pat::Type(typed) => &*typed.pat,
            pattern => pattern,
        };
        let value = local.init.as_ref().map(|init| &*init.expr);
        if matches!(name, Pat::Ident(_)) && matches!(value, Some(Expr::Closure(_))) {
            self.figures.named_closures += 1;
        }
        visit::visit_local(self, local);
    }
}

#[cfg(test)]
mod tests;
