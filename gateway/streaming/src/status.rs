//! The format in which a client receives the exit status of its process: the JSON of a Kubernetes `Status`,
//! or a plain line.

use serde_json::json;

use crate::session::{Outcome, Refusal};

/// The format of the error stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// One JSON object, also on success: from protocol version 4 on.
    Json,
    /// A line on failure, nothing on success.
    Plain,
}

/// The content of the error stream.
pub(crate) fn status(outcome: &Outcome, form: Form) -> String {
    let (message, json) = match outcome {
        Outcome::Exited(0) => (String::new(), json!({"metadata": {}, "status": "Success"})),
        Outcome::Exited(code) => {
            let message = format!("command terminated with non-zero exit code: {code}");
            let cause = json!({"reason": "ExitCode", "message": code.to_string()});
            let json = json!({
                "metadata": {}, "status": "Failure", "message": message, "reason": "NonZeroExitCode",
                "details": {"causes": [cause]},
            });
            (message, json)
        }
        Outcome::Failed(refusal) => {
            let (message, reason, code, why) = match refusal {
                Refusal::Exhausted(why) => (refusal.to_string(), "ResourceExhausted", 507, why),
                Refusal::Failed(why) => (
                    format!("Internal error occurred: {why}"),
                    "InternalError",
                    500,
                    why,
                ),
            };
            let json = json!({
                "metadata": {}, "status": "Failure", "message": message, "reason": reason,
                "details": {"causes": [{"message": why}]}, "code": code,
            });
            (message, json)
        }
    };
    match form {
        Form::Json => json.to_string(),
        Form::Plain => message,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Form, status};
    use crate::session::{Outcome, Refusal};

    fn parsed(outcome: &Outcome) -> Value {
        serde_json::from_str(&status(outcome, Form::Json)).unwrap()
    }

    #[test]
    fn success_status_exists_only_as_json() {
        assert_eq!(
            parsed(&Outcome::Exited(0)),
            json!({"metadata": {}, "status": "Success"})
        );
        assert_eq!(status(&Outcome::Exited(0), Form::Plain), "");
    }

    #[test]
    fn exit_code_is_a_status_cause() {
        let status = parsed(&Outcome::Exited(42));
        assert_eq!(status["reason"], "NonZeroExitCode");
        assert_eq!(
            status["details"]["causes"],
            json!([{"reason": "ExitCode", "message": "42"}])
        );
    }

    #[test]
    fn failure_status_has_both_forms() {
        let outcome = Outcome::Failed(Refusal::Failed("no such \"file\"".to_owned()));
        assert_eq!(parsed(&outcome)["code"], 500);
        assert_eq!(
            parsed(&outcome)["message"],
            "Internal error occurred: no such \"file\""
        );
        assert_eq!(
            status(&outcome, Form::Plain),
            "Internal error occurred: no such \"file\""
        );
    }

    #[test]
    fn limit_of_the_node_is_no_internal_error() {
        let outcome = Outcome::Failed(Refusal::Exhausted("no space left on device".to_owned()));
        let json = parsed(&outcome);
        assert_eq!(
            (&json["reason"], &json["code"]),
            (&json!("ResourceExhausted"), &json!(507))
        );
        let text = "ResourceExhausted: no space left on device";
        assert_eq!(json["message"], text);
        assert_eq!(status(&outcome, Form::Plain), text);
    }
}
