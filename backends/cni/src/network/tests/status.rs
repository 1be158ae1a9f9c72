//! STATUS, which is about the network and not about an attachment.

use super::*;

#[tokio::test]
async fn status_is_asked_of_each_plugin_until_one_refuses() {
    let code = |code: u32| format!("echo '{{\"code\":{code},\"msg\":\"no\"}}'; exit 1");
    for (version, first, expected, order) in [
        ("1.1.0", "exit 0".to_owned(), None, &["one", "two"][..]),
        // A plugin that does not have it says nothing.
        ("1.1.0", code(4), None, &["one", "two"][..]),
        (
            "1.1.0",
            code(50),
            Some("refused STATUS with code 50"),
            &["one"][..],
        ),
        (
            "1.1.0",
            code(51),
            Some("refused STATUS with code 51"),
            &["one"][..],
        ),
        (
            "1.1.0",
            "exit 7".to_owned(),
            Some("failed on STATUS"),
            &["one"][..],
        ),
        // There is no STATUS in these versions.
        ("1.0.0", code(50), None, &[][..]),
        ("0.4.0", code(50), None, &[][..]),
    ] {
        let bench = Bench::new();
        bench.plugin("one", &first);
        bench.good("two", "10.0.0.2/24");
        let network = bench.network(&list(version, &["loopback", "one", "two"]));
        let error = network.status().await.err().map(|error| error.to_string());
        match (&error, expected) {
            (Some(error), Some(expected)) => assert!(error.contains(expected), "{error}"),
            (error, expected) => assert_eq!(error.as_deref(), expected, "{version} {first}"),
        }
        let order: Vec<_> = order
            .iter()
            .map(|plugin| format!("STATUS {plugin}"))
            .collect();
        assert_eq!(bench.order(), order, "{version} {first}");
    }
}

#[tokio::test]
async fn status_has_no_attachment() {
    let bench = Bench::new();
    bench.good("one", "10.0.0.2/24");
    let mut list = list("1.1.0", &["one"]);
    list["plugins"][0]["capabilities"] = json!({ "portMappings": true });
    bench.network(&list).status().await.unwrap();
    let given = bench.stdin("one", "STATUS");
    let expected = json!({ "cniVersion": "1.1.0", "name": "net", "type": "one" });
    assert_eq!(given, expected);
    for name in ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS"] {
        assert_eq!(bench.env("one", "STATUS", name), None, "{name}");
    }
    assert!(bench.env("one", "STATUS", "CNI_PATH").is_some());
}
