//! The table of environments, with the name in a configuration and the settings of each.

/// Generates [`EnvironmentSettings`](super::EnvironmentSettings) from the table. The first kind, which has no settings, is
/// the default.
macro_rules! environments {
    (
        $(#[doc = $default_doc:literal])+
        $default:ident($no_keys:ident) = $default_name:literal;
        $($(#[doc = $doc:literal])+ $kind:ident($settings:ident) = $name:literal,)+
    ) => {
        /// Settings of an environment. In a configuration they are a flat table with `kind` and the keys of that kind.
        ///
        /// ```
        /// # use rloom_env::EnvironmentSettings;
        /// let settings: EnvironmentSettings = serde_json::from_str(r#"{ "kind": "guess", "max_turns": 6 }"#).unwrap();
        /// assert_eq!(settings.max_turns(), 6);
        /// assert_eq!(serde_json::from_str::<EnvironmentSettings>("{}").unwrap(), EnvironmentSettings::SingleTurn);
        /// ```
        #[derive(Debug, Clone, PartialEq, Default)]
        pub enum EnvironmentSettings {
            $(#[doc = $default_doc])+
            #[default]
            $default,
            $($(#[doc = $doc])+ $kind($settings),)+
        }

        impl EnvironmentSettings {
            /// Names of all kinds with their descriptions.
            pub const KINDS: &'static [(&'static str, &'static str)] =
                &[($default_name, concat!($($default_doc),+)), $(($name, concat!($($doc),+))),+];

            /// Name in a configuration.
            pub fn name(&self) -> &'static str {
                match self {
                    Self::$default => $default_name,
                    $(Self::$kind(_) => $name,)+
                }
            }

            fn kind(&self) -> &dyn $crate::settings::Kind {
                match self {
                    Self::$default => &$no_keys {},
                    $(Self::$kind(settings) => settings,)+
                }
            }

            fn kind_mut(&mut self) -> Option<&mut dyn $crate::settings::Kind> {
                match self {
                    Self::$default => None,
                    $(Self::$kind(settings) => Some(settings),)+
                }
            }
        }

        /// Name of a kind in a configuration.
        #[derive(Clone, Copy, Default, serde::Deserialize)]
        pub(super) enum KindName {
            #[default]
            #[serde(rename = $default_name)]
            $default,
            $(#[serde(rename = $name)] $kind,)+
        }

        /// Keys of each kind.
        const KEYS: &[&[&str]] = &[$(<$settings as $crate::keys::Keys>::KEYS),+];

        /// Reads the value of a key as the type that it has in the first kind with that key.
        fn read_value<'de, D: serde::Deserializer<'de>>(
            key: &str,
            value: D,
        ) -> Result<serde_json::Value, D::Error> {
            $(if <$settings as $crate::keys::Keys>::KEYS.contains(&key) {
                return <$settings as $crate::keys::Keys>::read(key, value);
            })+
            Err(serde::de::Error::unknown_field(key, &[]))
        }

        /// The settings of a kind; keys of other kinds are errors.
        fn from_given<E: serde::de::Error>(
            kind: KindName,
            given: serde_json::Map<String, serde_json::Value>,
        ) -> Result<EnvironmentSettings, E> {
            match kind {
                KindName::$default => flat::from_own_keys(given, $default_name)
                    .map(|$no_keys {}| EnvironmentSettings::$default),
                $(KindName::$kind => flat::from_own_keys(given, $name).map(EnvironmentSettings::$kind),)+
            }
        }

        /// The keys and values of the settings.
        fn to_given(settings: &EnvironmentSettings) -> serde_json::Result<serde_json::Value> {
            match settings {
                EnvironmentSettings::$default => Ok(serde_json::Value::Null),
                $(EnvironmentSettings::$kind(settings) => serde_json::to_value(settings),)+
            }
        }

        /// The environment of a stage.
        #[derive(schemars::JsonSchema)]
        #[serde(tag = "kind")]
        #[expect(dead_code, reason = "only its schema is used")]
        enum KindTable {
            $(#[doc = $default_doc])+
            #[serde(rename = $default_name)]
            $default,
            $($(#[doc = $doc])+ #[serde(rename = $name)] $kind($settings),)+
        }
    };
}
pub(super) use environments;
