//! Tests of decoding configurations, with bytes from a real encoder.

use proptest::prelude::*;
use rmpv::Value;

use super::*;
use crate::configs::{bytes, list, map, pairs, texts};

fn block(bytes: &[u8]) -> Block {
    Block::decode(bytes).unwrap()
}

/// Decodes the integer in these bytes under the key `n`.
fn number_in(value: &[u8]) -> Result<Option<i64>> {
    block(&[b"\x81\xa1n", value].concat()).number("n")
}

#[test]
fn omitted_keys_are_unset() {
    // A schema with a flag, a list, a number and a text, none of them set, as encoded by go-cty.
    let mut none = block(b"\x84\xa1b\xc0\xa1l\xc0\xa1n\xc0\xa1s\xc0");
    assert_eq!(
        (
            none.flag("b").unwrap(),
            none.number("n").unwrap(),
            none.text("s").unwrap().as_str()
        ),
        (None, None, "")
    );
    assert_eq!(none.texts("l").unwrap(), Vec::<String>::new());
    for nothing in [&b""[..], b"\xc0", b"\x80"] {
        assert_eq!(block(nothing).number("n").unwrap(), None);
        assert!(!block(nothing).has("n"));
    }
}

#[test]
fn numbers_decode_from_all_messagepack_forms() {
    for (bytes, expected) in [
        (&b"\x07"[..], 7),
        (b"\xff", -1),
        (b"\xcc\xff", 255),
        (b"\xcd\x01\x00", 256),
        (b"\xcf\x00\x00\x00\x01\x2a\x05\xf2\x00", 5_000_000_000),
        (b"\xd3\xff\xff\xff\xff\xff\xff\xff\xfe", -2),
        (b"\xcb\x40\x00\x00\x00\x00\x00\x00\x00", 2),
        (b"\xca\x40\x00\x00\x00", 2),
        // A number that is not exactly representable as a float is encoded as its digits.
        (b"\xa242", 42),
        (b"\xa442.0", 42),
        (b"\xc4\x0242", 42),
    ] {
        assert_eq!(number_in(bytes).unwrap(), Some(expected), "{bytes:?}");
    }
}

#[test]
fn non_integer_is_rejected_by_key() {
    for bytes in [
        &b"\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00"[..],
        b"\xa30.1",
        b"\xa0",
        b"\xa3abc",
        b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00",
        b"\xcb\x7f\xf0\x00\x00\x00\x00\x00\x00",
        b"\xcb\x43\xe0\x00\x00\x00\x00\x00\x00",
    ] {
        let error = number_in(bytes).unwrap_err();
        assert_eq!(
            error.to_string(),
            "n: it is not a whole number of 64 bits",
            "{bytes:?}"
        );
    }
    assert_eq!(
        number_in(b"\xc3").unwrap_err().to_string(),
        "n: a number is wanted here, not true or false"
    );
}

#[test]
fn strings_decode_from_str_or_bin() {
    // The last is the form in which old Go encoders write texts of 32 bytes and more.
    let long = [b"\x81\xa1s\xda\x00\x20", &[b'x'; 32][..]].concat();
    for (bytes, expected) in [
        (&b"\x81\xa1s\xa2hi"[..], "hi"),
        (b"\x81\xa1s\xc4\x02hi", "hi"),
        (&long, &"x".repeat(32)),
    ] {
        assert_eq!(block(bytes).text("s").unwrap(), expected);
    }
    // Keys as well.
    assert_eq!(block(b"\x81\xc4\x01s\xa2hi").text("s").unwrap(), "hi");
    assert_eq!(
        block(b"\x81\xa1s\xa1\xff")
            .text("s")
            .unwrap_err()
            .to_string(),
        "s: it is not UTF-8"
    );
    assert_eq!(
        block(b"\x81\xa1s\xa3a\0b")
            .text("s")
            .unwrap_err()
            .to_string(),
        "s: it contains a NUL byte"
    );
}

#[test]
fn lists_of_maps_are_merged_in_order() {
    let wanted = BTreeMap::from([
        ("a".to_owned(), "1".to_owned()),
        ("b".to_owned(), "3".to_owned()),
    ]);
    let several = list([
        map([("a", "1".into()), ("b", "2".into())]),
        Value::Nil,
        map([("b", "3".into())]),
    ]);
    let one = map([("a", "1".into()), ("b", "3".into())]);
    for value in [several, one, pairs(&[("a", "1"), ("b", "3")])] {
        assert_eq!(
            block(&bytes(&map([("m", value)]))).pairs("m").unwrap(),
            wanted
        );
    }
    let nothing = map([("m", list([map([("a", Value::Nil)])]))]);
    assert_eq!(
        block(&bytes(&nothing)).pairs("m").unwrap(),
        BTreeMap::from([("a".to_owned(), String::new())])
    );
}

#[test]
fn block_is_a_map_or_a_list_of_one() {
    for value in [map([("k", "v".into())]), list([map([("k", "v".into())])])] {
        let mut outer = block(&bytes(&map([("b", value)])));
        assert_eq!(outer.block("b").unwrap().text("k").unwrap(), "v");
        assert_eq!(
            outer.block("b").unwrap().text("k").unwrap(),
            "",
            "it is taken out"
        );
    }
    for value in [Value::Nil, list([]), list([Value::Nil])] {
        let mut outer = block(&bytes(&map([("b", value)])));
        assert_eq!(outer.block("b").unwrap().text("k").unwrap(), "");
    }
}

#[test]
fn errors_name_the_full_key_path() {
    let config = map([
        (
            "mounts",
            list([
                map([]),
                map([("tmpfs_options", map([("size", "x".into())]))]),
            ]),
        ),
        ("args", list(["a".into(), 1.into()])),
        ("labels", list([map([("a", 1.into())])])),
        ("auth", "text".into()),
        ("one", list([map([]), map([])])),
    ]);
    let mut config = block(&bytes(&config));
    let mut mounts = config.blocks("mounts").unwrap();
    let error = mounts[1]
        .block("tmpfs_options")
        .unwrap()
        .number("size")
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "mounts[1].tmpfs_options.size: it is not a whole number of 64 bits"
    );
    let error = config.texts("args").unwrap_err();
    assert_eq!(
        error.to_string(),
        "args[1]: a text is wanted here, not a number"
    );
    let error = config.pairs("labels").unwrap_err();
    assert_eq!(
        error.to_string(),
        "labels.a: a text is wanted here, not a number"
    );
    let error = config.block("auth").err().unwrap();
    assert_eq!(
        error.to_string(),
        "auth: a block is wanted here, not a text"
    );
    let error = config.block("one").err().unwrap();
    assert_eq!(error.to_string(), "one: a block is wanted here, not a list");
}

#[test]
fn non_configuration_bytes_are_rejected() {
    for bad in [
        &b"\x81"[..],
        b"\x81\xa1s",
        b"\x80\x80",
        b"\xa1x",
        b"\x90",
        b"\x81\xc0\xc0",
        b"\xdf\xff\xff\xff\xff",
    ] {
        let error = Block::decode(bad).err().unwrap();
        assert!(error.to_string().starts_with("config: "), "{error}");
    }
    let deep = [vec![0x91; 1000], vec![0x80]].concat();
    assert!(Block::decode(&deep).is_err());
}

proptest! {
    #[test]
    fn any_bytes_decode_or_fail(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        if let Ok(mut block) = Block::decode(&bytes) {
            for key in block.entries.clone().keys() {
                let _ = (block.has(key), block.texts(key));
            }
        }
    }

    #[test]
    fn errors_contain_no_values(secret in "[a-zA-Z0-9]{8,16}") {
        for value in [Value::from(secret.as_str()), list([secret.as_str().into()]), map([("k", secret.as_str().into())])] {
            let read = |read: &dyn Fn(&mut Block) -> Option<Error>| {
                read(&mut block(&bytes(&map([("key", value.clone())])))).map(|error| error.report())
            };
            let errors = [
                read(&|block| block.flag("key").err()),
                read(&|block| block.number("key").err()),
                read(&|block| block.text("key").err()),
                read(&|block| block.texts("key").err()),
                read(&|block| block.pairs("key").err()),
                read(&|block| block.block("key").err()),
                read(&|block| block.blocks("key").err()),
            ];
            for error in errors.into_iter().flatten() {
                prop_assert!(!error.contains(&secret), "{}", error);
            }
        }
    }

    #[test]
    fn strings_round_trip(list in proptest::collection::vec("[^\\x00]{0,40}", 0..6)) {
        let borrowed: Vec<&str> = list.iter().map(String::as_str).collect();
        let mut block = block(&bytes(&map([("l", texts(&borrowed))])));
        prop_assert_eq!(block.texts("l").unwrap(), list);
    }

    #[test]
    fn integers_round_trip_in_every_form(number in any::<i64>(), small in -1_000_000_i32..1_000_000) {
        let forms = [Value::from(number), Value::from(number.to_string())];
        for form in forms {
            prop_assert_eq!(block(&bytes(&map([("n", form)]))).number("n").unwrap(), Some(number));
        }
        let float = Value::F64(f64::from(small));
        prop_assert_eq!(block(&bytes(&map([("n", float)]))).number("n").unwrap(), Some(i64::from(small)));
    }
}
