//! Prometheus' text format: labels, and the lines before the samples of a metric.

use std::fmt::Write as _;

use crate::Metric;

/// Appends `,name="value"`, or without the comma at the beginning of a text.
pub(crate) fn write_label(out: &mut String, name: &str, value: &str) {
    if !out.is_empty() {
        out.push(',');
    }
    out.push_str(name);
    out.push_str("=\"");
    write_escaped(out, value);
    out.push('"');
}

/// Appends a label's value: the three characters that end a value or a line, or begin an escape, are escaped.
fn write_escaped(out: &mut String, value: &str) {
    let mut rest = value;
    while let Some(at) = rest.find(['\\', '"', '\n']) {
        let (plain, special) = rest.split_at(at);
        out.push_str(plain);
        out.push_str(match special.as_bytes()[0] {
            b'\n' => "\\n",
            b'"' => "\\\"",
            _ => "\\\\",
        });
        rest = &special[1..];
    }
    out.push_str(rest);
}

/// Appends what the metric says, and its type. The help texts of [`Metric`] need no escapes.
pub(crate) fn write_header(out: &mut String, metric: Metric) {
    let name = metric.name();
    let kind = metric.kind().as_str();
    writeln!(out, "# HELP {name} {}\n# TYPE {name} {kind}", metric.help())
        .expect("writing to a string cannot fail");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_characters_of_values_are_escaped() {
        let mut out = String::new();
        write_label(&mut out, "pod", "a\"b\\c\nd");
        write_label(&mut out, "image", "");
        write_label(&mut out, "namespace", "\\\\é\r");
        assert_eq!(
            out,
            "pod=\"a\\\"b\\\\c\\nd\",image=\"\",namespace=\"\\\\\\\\é\r\""
        );
    }

    #[test]
    fn help_texts_need_no_escapes() {
        for metric in Metric::ALL {
            assert!(!metric.help().contains(['\\', '\n']), "{metric:?}");
        }
    }
}
