//! Commands that documents give to operators, for tests that run them as they are written.

/// Returns the block of commands of a document that contains this text, without the block's indentation.
///
/// # Panics
/// If no block contains it, or more than one.
#[track_caller]
#[must_use]
pub fn commands(document: &str, text: &str) -> String {
    let mut found = blocks(document);
    found.retain(|block| block.contains(text));
    assert_eq!(
        found.len(),
        1,
        "one block of commands contains {text:?}: {found:#?}"
    );
    found.remove(0)
}

/// All blocks of commands of a document.
fn blocks(document: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut lines = document.lines();
    while let Some(line) = lines.next() {
        let Some(indent) = line.strip_suffix("```sh") else {
            continue;
        };
        let block = lines
            .by_ref()
            .take_while(|line| line.trim() != "```")
            .map(|line| format!("{}\n", line.strip_prefix(indent).unwrap_or(line)));
        blocks.push(block.collect());
    }
    blocks
}
