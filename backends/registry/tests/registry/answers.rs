//! What errors tell of the answers of registries and mirrors.

use switchyard_registry::{Credentials, Error};

use crate::server::{Registry, resolve, text};

#[tokio::test]
async fn rate_limit_is_told_in_the_words_of_who_sets_it() {
    let said = r#"{"errors":[{"code":"TOOMANYREQUESTS","message":"pull rate limit reached"}]}"#;
    for (body, words) in [
        (said, "TOOMANYREQUESTS: pull rate limit reached"),
        (
            r#"{"errors":[{"message":"slower\u001b[2J"}]}"#,
            "slower\\u{1b}[2J",
        ),
        // A body in no known format is not shown.
        ("<html>later</html>", "too many requests"),
        ("", "too many requests"),
    ] {
        let registry = Registry::start().await;
        registry.rule(move |_| Some(text(429, body)));
        let error = resolve(&registry.reference("app:v1"), Credentials::Anonymous)
            .await
            .unwrap_err();
        assert!(
            matches!(&error, Error::RateLimited { reason, .. } if reason == words),
            "{error:?}"
        );
        assert!(
            error.to_string().ends_with(&format!(": {words}")),
            "{error}"
        );
    }
}
