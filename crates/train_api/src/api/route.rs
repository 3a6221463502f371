use hyper::{Method, StatusCode};
use rloom_serve::ExtensionRoute;

use crate::problem::Problem;

const PREFIX: &str = "/api/v1/";

/// What a path stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Route {
    Health,
    Telemetry,
    ClientConfig,
    DynamicConfig,
    Capabilities,
    CreateSession,
    Heartbeat,
    Finish(String),
    CreateModel,
    Info,
    WeightsInfo,
    Unload,
    ForwardBackward,
    OptimStep,
    SaveWeights,
    LoadWeights,
    SaveForSampler,
    CreateSampler,
    Sampler(String),
    Sample,
    Cancel,
    Retrieve,
    Checkpoints,
    CheckpointsOf(String),
    DeleteCheckpoint(String, String),
}

/// Paths without a variable part, with their names in the log; true for those that clients repeat all the time.
const PATHS: [(&str, Route, &str, bool); 21] = [
    ("healthz", Route::Health, "GET /api/v1/healthz", true),
    ("telemetry", Route::Telemetry, "POST /api/v1/telemetry", true),
    ("client/config", Route::ClientConfig, "POST /api/v1/client/config", false),
    ("client/dynamic_config", Route::DynamicConfig, "POST /api/v1/client/dynamic_config", true),
    ("get_server_capabilities", Route::Capabilities, "GET /api/v1/get_server_capabilities", false),
    ("create_session", Route::CreateSession, "POST /api/v1/create_session", false),
    ("session_heartbeat", Route::Heartbeat, "POST /api/v1/session_heartbeat", true),
    ("create_model", Route::CreateModel, "POST /api/v1/create_model", false),
    ("get_info", Route::Info, "POST /api/v1/get_info", false),
    ("weights_info", Route::WeightsInfo, "POST /api/v1/weights_info", false),
    ("unload_model", Route::Unload, "POST /api/v1/unload_model", false),
    ("forward_backward", Route::ForwardBackward, "POST /api/v1/forward_backward", false),
    ("optim_step", Route::OptimStep, "POST /api/v1/optim_step", false),
    ("save_weights", Route::SaveWeights, "POST /api/v1/save_weights", false),
    ("load_weights", Route::LoadWeights, "POST /api/v1/load_weights", false),
    ("save_weights_for_sampler", Route::SaveForSampler, "POST /api/v1/save_weights_for_sampler", false),
    ("create_sampling_session", Route::CreateSampler, "POST /api/v1/create_sampling_session", false),
    ("asample", Route::Sample, "POST /api/v1/asample", false),
    ("cancel_future", Route::Cancel, "POST /api/v1/cancel_future", true),
    ("checkpoints", Route::Checkpoints, "GET /api/v1/checkpoints", false),
    ("retrieve_future", Route::Retrieve, "POST /api/v1/retrieve_future", true),
];

impl Route {
    /// The route of a request.
    pub(super) fn of(method: &Method, path: &str) -> Result<Self, Problem> {
        let route = path.strip_prefix(PREFIX).and_then(Self::of_path);
        let route =
            route.ok_or_else(|| Problem::not_found("this server does not have this part of the API"))?;
        let expected = route.method();
        if *method == expected {
            return Ok(route);
        }
        let message = format!("this path is only served for {expected}");
        Err(Problem { status: StatusCode::METHOD_NOT_ALLOWED, message })
    }

    fn of_path(path: &str) -> Option<Self> {
        if let Some((_, route, ..)) = PATHS.iter().find(|(known, ..)| *known == path) {
            return Some(route.clone());
        }
        let one = |text: &str| (!text.is_empty() && !text.contains('/')).then(|| text.replace("%3A", ":"));
        if let Some(sampler) = path.strip_prefix("samplers/") {
            return one(sampler).map(Self::Sampler);
        }
        if let Some(rest) = path.strip_prefix("training_runs/") {
            let (run, rest) = rest.split_once('/')?;
            return match rest.strip_prefix("checkpoints")?.strip_prefix('/') {
                None if rest == "checkpoints" => one(run).map(Self::CheckpointsOf),
                None => None,
                Some(checkpoint) => {
                    let (kind, name) = checkpoint.split_once('/')?;
                    Some(Self::DeleteCheckpoint(one(run)?, format!("{kind}/{}", one(name)?)))
                }
            };
        }
        let session = path.strip_prefix("sessions/")?.strip_suffix("/finish")?;
        one(session).map(Self::Finish)
    }

    fn method(&self) -> Method {
        match self {
            Self::Health
            | Self::Capabilities
            | Self::Sampler(_)
            | Self::Checkpoints
            | Self::CheckpointsOf(_) => Method::GET,
            Self::DeleteCheckpoint(..) => Method::DELETE,
            _ => Method::POST,
        }
    }

    /// The route of a path in the log; `None` for paths outside of the API.
    pub(super) fn logged(path: &str) -> Option<ExtensionRoute> {
        let path = path.strip_prefix(PREFIX)?;
        let known = PATHS.iter().find(|(known, ..)| *known == path);
        let (name, is_frequent) = match known {
            Some((_, _, name, is_frequent)) => (*name, *is_frequent),
            None if path.starts_with("training_runs/") && path.ends_with("/checkpoints") => {
                ("GET /api/v1/training_runs/ID/checkpoints", false)
            }
            None if path.starts_with("training_runs/") => {
                ("DELETE /api/v1/training_runs/ID/checkpoints/NAME", false)
            }
            None if path.starts_with("samplers/") => ("GET /api/v1/samplers/ID", false),
            None if path.ends_with("/finish") => ("POST /api/v1/sessions/ID/finish", false),
            None => ("unknown path of /api/v1", false),
        };
        Some(ExtensionRoute { name, is_frequent })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_recognised() {
        let of =
            |method: Method, path: &str| Route::of(&method, path).map_err(|problem| problem.status.as_u16());
        assert_eq!(of(Method::POST, "/api/v1/asample"), Ok(Route::Sample));
        assert_eq!(of(Method::GET, "/api/v1/healthz"), Ok(Route::Health));
        assert_eq!(of(Method::GET, "/api/v1/asample"), Err(405));
        assert_eq!(of(Method::POST, "/api/v1/healthz"), Err(405));
        assert_eq!(of(Method::GET, "/api/v1/samplers/a:sample:0"), Ok(Route::Sampler("a:sample:0".into())));
        assert_eq!(
            of(Method::GET, "/api/v1/samplers/a%3Asample%3A0"),
            Ok(Route::Sampler("a:sample:0".into()))
        );
        assert_eq!(of(Method::POST, "/api/v1/sessions/a/finish"), Ok(Route::Finish("a".into())));
        for path in ["", "x", "samplers/", "samplers/a/b", "sessions//finish", "sessions/finish", "asample/"]
        {
            assert_eq!(of(Method::POST, &format!("/api/v1/{path}")), Err(404), "{path}");
        }
        let listed = Route::CheckpointsOf("a:train:0".into());
        assert_eq!(of(Method::GET, "/api/v1/training_runs/a:train:0/checkpoints"), Ok(listed));
        let deleted = Route::DeleteCheckpoint("a".into(), "weights/b".into());
        assert_eq!(of(Method::DELETE, "/api/v1/training_runs/a/checkpoints/weights/b"), Ok(deleted));
        assert_eq!(of(Method::GET, "/api/v1/training_runs/a/checkpoints/weights/b"), Err(405));
        for path in ["training_runs/a/checkpoints/", "training_runs/a/checkpoints/b", "training_runs/a"] {
            assert_eq!(of(Method::DELETE, &format!("/api/v1/{path}")), Err(404), "{path}");
        }
        assert_eq!(Route::logged("/v1/models"), None);
        assert!(Route::logged("/api/v1/retrieve_future").unwrap().is_frequent);
    }
}
