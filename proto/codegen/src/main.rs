//! Replaces the checked-in code by what was generated: `cargo run -p switchyard-codegen` after a change of a `.proto` file.

use std::{fs, io, path::Path};

use switchyard_codegen::{FRESH, checked_in, sources};

fn main() -> io::Result<()> {
    let dir = checked_in();
    for (name, _) in sources(dir)? {
        fs::remove_file(dir.join(name))?;
    }
    for (name, text) in sources(Path::new(FRESH))? {
        fs::write(dir.join(name), text)?;
    }
    Ok(())
}
