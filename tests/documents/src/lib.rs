//! The parts of documents that are generated from tables in the code, between `<!-- generated: NAME -->` and `<!-- end -->`. What is
//! outside of these marks is written by hand.

use std::fs;
use std::io::{Error, Result};
use std::path::{Path, PathBuf};

use switchyard_container_metrics::Metric;
use switchyard_doctor::codes;
use switchyard_operator::metrics::table::{Description, SECTIONS};

/// The mark after a generated part.
const END: &str = "<!-- end -->";

/// A document with its generated parts, each with its name.
#[derive(Debug)]
pub struct Document {
    path: PathBuf,
    parts: Vec<(&'static str, String)>,
}

/// All documents with generated parts.
#[must_use]
pub fn all() -> [Document; 2] {
    let docs = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs"));
    let metrics = SECTIONS
        .iter()
        .map(|(name, metrics)| (*name, metric_table(metrics)));
    let containers = ("containers", container_metrics());
    [
        Document {
            path: docs.join("doctor.md"),
            parts: vec![("codes", codes::chapters())],
        },
        Document {
            path: docs.join("metrics.md"),
            parts: metrics.chain([containers]).collect(),
        },
    ]
}

fn metric_table(metrics: &[Description]) -> String {
    let mut table = "| metric | type | labels | meaning |\n|---|---|---|---|\n".to_owned();
    for Description {
        name,
        kind,
        labels,
        help,
    } in metrics
    {
        let kind = kind.as_str();
        let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
        table.push_str(&format!(
            "| `{name}` | {kind} | {} | {help} |\n",
            labels.join(", ")
        ));
    }
    table
}

/// The metrics of containers, on a line each, without their meanings, which are cAdvisor's.
fn container_metrics() -> String {
    let mut list = "```text\n".to_owned();
    for metric in Metric::ALL {
        let labels = metric.labels().join(",");
        let labels = if labels.is_empty() {
            labels
        } else {
            format!("{{{labels}}}")
        };
        list.push_str(&format!("{}{labels}\n", metric.name()));
    }
    list + "```\n"
}

impl Document {
    /// The path of the document.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the text as it is, and with current parts.
    ///
    /// # Errors
    /// A file that cannot be read, or that has not exactly one place for each part.
    pub fn versions(&self) -> Result<(String, String)> {
        let found = fs::read_to_string(&self.path)?;
        if found.matches(END).count() != self.parts.len() {
            return Err(self.error("a mark for a part that is not generated"));
        }
        let mut current = found.clone();
        for (name, part) in &self.parts {
            let begin = format!("<!-- generated: {name} -->\n");
            let (before, rest) = current
                .split_once(&begin)
                .ok_or_else(|| self.error(&format!("no mark for {name}")))?;
            let (_, after) = rest
                .split_once(END)
                .ok_or_else(|| self.error(&format!("no end of {name}")))?;
            current = format!("{before}{begin}{part}{END}{after}");
        }
        Ok((found, current))
    }

    fn error(&self, fault: &str) -> Error {
        Error::other(format!("{}: {fault}", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_what_the_code_says() {
        for document in all() {
            let (found, current) = document.versions().unwrap();
            let path = document.path().display();
            assert!(
                found == current,
                "{path} is outdated: run `cargo run -p switchyard-documents`"
            );
        }
    }
}
