//! Tests of the figures.

use super::Figures;

/// A file with each of what is counted.
const FILE: &str = r#"//! Whether a file can be measured.

use std::fmt; // why it is imported

/// A type.
pub struct One(u8);

/// What a function does.
/// Which is a second line.
fn first() -> u8 {
    // A reason.
    let add = |one: u8| one + 1;
    let text = "two
      // lines";

    add(1) /* and another */
}

trait Asked {
    fn default(&self) -> u8 {
        let plus: fn(u8) -> u8 = |one| one;
        plus(1)
    }
    fn other(&self);
}

#[cfg(test)]
mod tests {
    //! How it is tested.
    fn helper() {
        let add = |one: u8| one;
    }
}

impl One {
    #[cfg(test)]
    fn for_tests() {}
}
"#;

#[test]
fn code_is_counted_without_comments_and_tests() {
    let figures = Figures::of(FILE).expect("the code of this test is Rust");
    assert_eq!(
        figures,
        Figures {
            files: 1,
            // `use`, `struct`, the function's six, the trait's seven, and the two of the implementation.
            lines: 17,
            characters: figures.characters,
            functions: vec![6, 4],
            named_closures: 2,
            lines_in_functions: 10,
            comments_in_functions: 2,
            doc_comments: 3,
            question_comments: 2,
        }
    );
}

#[test]
fn characters_are_counted_without_indentation_and_comments() {
    let count = |text: &str| {
        Figures::of(text)
            .expect("the code of this test is Rust")
            .characters
    };
    assert_eq!(count("fn a() {}"), 9);
    assert_eq!(
        count("    fn a() {}  // why\n\n/// What\nconst ß: char = 'ß';"),
        9 + 20
    );
    assert_eq!(count("const A: &str = \"one\n\ntwo\";"), 20 + 1 + 5);
}

#[test]
fn figures_of_several_files_are_added() {
    let file = Figures::of(FILE).expect("the code of this test is Rust");
    let mut both = file.clone();
    both.add(file.clone());
    assert_eq!(
        (both.files, both.lines, both.functions),
        (2, 2 * file.lines, vec![6, 4, 6, 4])
    );
}
