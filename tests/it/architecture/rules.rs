//! `docs/network.md` has the tables of nf_tables as they are made, and a reason for each of their rules.

use std::fs;

use switchyard_network::nft::{self, NftFamily, TableName, TableSet};

use super::repository;

/// The blocks of code in a document.
fn blocks(document: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut open: Option<String> = None;
    for line in document.lines() {
        if line.starts_with("```") {
            match open.take() {
                Some(block) => blocks.push(block),
                None => open = Some(String::new()),
            }
        } else if let Some(block) = &mut open {
            block.push_str(line);
            block.push('\n');
        }
    }
    blocks
}

/// The rules of a table. The document has those of both families of addresses with the words of IPv4.
fn rules(family: NftFamily, table: &str) -> Vec<String> {
    let rules = table
        .lines()
        .filter_map(|line| line.strip_prefix("\t\t"))
        .filter(|line| !line.starts_with("type ") && !line.starts_with("flags "));
    let of_both = |rule: &str| match family {
        NftFamily::Ip4 | NftFamily::Ip6 => {
            rule.replace("ip6 daddr != ::1 ", "").replace("ip6", "ip")
        }
        NftFamily::Bridge => rule.to_owned(),
    };
    rules.map(of_both).collect()
}

#[test]
fn tables_in_the_document_are_those_that_are_made() {
    let document =
        fs::read_to_string(repository().join("docs/network.md")).expect("the document can be read");
    let blocks = blocks(&document);
    for family in NftFamily::TABLES {
        let table = nft::text(family, &TableName::default());
        assert!(
            blocks.contains(&table),
            "docs/network.md has not this table as it is made:\n{table}"
        );
        let rules = rules(family, &table);
        assert!(rules.len() >= 8, "{rules:#?}");
        for rule in rules {
            let cell = format!("| `{rule}` |");
            assert!(
                document.contains(&cell),
                "docs/network.md has no reason for the rule: {rule}"
            );
        }
    }
    for set in TableSet::ALL {
        let cell = format!("\n| `{}` |", set.name());
        assert!(
            document.contains(&cell),
            "docs/network.md does not say what is in {set}"
        );
    }
}

#[test]
fn document_is_read() {
    let text = "a\n```text\ntable ip x {\n\tchain c {\n\t\ttype nat;\n\t\tip6 daddr != ::1 ip6 saddr @a drop\n\t}\n}\n```\nb\n```\nc\n```\n";
    let blocks = blocks(text);
    assert_eq!(blocks.len(), 2);
    assert_eq!(rules(NftFamily::Ip6, &blocks[0]), ["ip saddr @a drop"]);
    let of_ports = rules(NftFamily::Bridge, &blocks[0]);
    assert_eq!(of_ports, ["ip6 daddr != ::1 ip6 saddr @a drop"]);
    assert_eq!(blocks[1], "c\n");
}
