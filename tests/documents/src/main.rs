//! Writes the generated parts of documents: `cargo run -p switchyard-documents` after a change of a table that they come from.

use std::{fs, io};

fn main() -> io::Result<()> {
    for document in switchyard_documents::all() {
        let (found, current) = document.versions()?;
        if found != current {
            fs::write(document.path(), current)?;
        }
    }
    Ok(())
}
