//! *Schema*: compares JSON with a schema, by the keywords that the schemas here use. A schema with
//! any other keyword is a fault, so no rule is left out. The group `deploy` of the chores compares
//! the same files with a complete validator.

use serde_json::Value;

/// Keywords that only describe.
const NOTES: [&str; 4] = ["$schema", "$defs", "title", "description"];

/// Returns the faults of a value; none if it obeys the schema.
pub(crate) fn faults(schema: &Value, value: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    Comparison { root: schema, faults: &mut faults }.compare(schema, value, "");
    faults
}

struct Comparison<'a> {
    root: &'a Value,
    faults: &'a mut Vec<String>,
}

impl Comparison<'_> {
    fn compare(&mut self, schema: &Value, value: &Value, at: &str) {
        let Some(rules) = schema.as_object() else {
            return self.fault(at, "the schema is no object");
        };
        for (keyword, rule) in rules {
            match keyword.as_str() {
                note if NOTES.contains(&note) => {}
                "$ref" => match rule.as_str().and_then(|path| path.strip_prefix('#')) {
                    Some(path) => match self.root.pointer(path) {
                        Some(target) => self.compare(target, value, at),
                        None => self.fault(at, &format!("{rule} does not exist")),
                    },
                    None => self.fault(at, &format!("{rule} is no reference")),
                },
                "type" => {
                    let types: Vec<&str> = match rule {
                        Value::Array(types) => types.iter().filter_map(Value::as_str).collect(),
                        one => one.as_str().into_iter().collect(),
                    };
                    if !types.iter().any(|name| is_type(value, name)) {
                        self.fault(at, &format!("{value} is not {rule}"));
                    }
                }
                "enum" => {
                    if !rule.as_array().is_some_and(|values| values.contains(value)) {
                        self.fault(at, &format!("{value} is not in {rule}"));
                    }
                }
                "oneOf" => {
                    let of = |schema| {
                        let mut faults = Vec::new();
                        let mut inner = Comparison { root: self.root, faults: &mut faults };
                        inner.compare(schema, value, at);
                        faults.is_empty()
                    };
                    let obeyed = rule.as_array().into_iter().flatten().filter(|one| of(one));
                    let obeyed = obeyed.count();
                    if obeyed != 1 {
                        self.fault(at, &format!("{value} obeys {obeyed} of the alternatives"));
                    }
                }
                "required" => {
                    for name in rule.as_array().into_iter().flatten().filter_map(Value::as_str) {
                        if value.is_object() && value.get(name).is_none() {
                            self.fault(at, &format!("{name} is missing"));
                        }
                    }
                }
                "properties" => {
                    for (name, schema) in rule.as_object().into_iter().flatten() {
                        if let Some(inner) = value.get(name) {
                            self.compare(schema, inner, &format!("{at}/{name}"));
                        }
                    }
                }
                "additionalProperties" => {
                    assert_eq!(rule, false, "only `false` is known");
                    let known = rules.get("properties").and_then(Value::as_object);
                    for name in value.as_object().into_iter().flatten().map(|(name, _)| name) {
                        if !known.is_some_and(|known| known.contains_key(name)) {
                            self.fault(at, &format!("{name} is unknown"));
                        }
                    }
                }
                "items" => {
                    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                        self.compare(rule, item, &format!("{at}/{index}"));
                    }
                }
                "minItems" => {
                    self.least(value.as_array().map(|items| items.len() as u64), rule, at)
                }
                "minLength" => self.least(value.as_str().map(|text| text.len() as u64), rule, at),
                "minimum" => {
                    let number = value.is_number().then(|| value.as_u64());
                    match number {
                        Some(None) => self.fault(at, &format!("{value} is negative")),
                        number => self.least(number.flatten(), rule, at),
                    }
                }
                other => self.fault(at, &format!("the keyword {other} is not known here")),
            }
        }
    }

    /// Compares a number, if there is one, with the least one.
    fn least(&mut self, number: Option<u64>, least: &Value, at: &str) {
        if number.zip(least.as_u64()).is_some_and(|(number, least)| number < least) {
            self.fault(at, &format!("less than {least}"));
        }
    }

    fn fault(&mut self, at: &str, text: &str) {
        self.faults.push(format!("{at}: {text}"));
    }
}

fn is_type(value: &Value, name: &str) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "integer" => value.is_u64() || value.is_i64(),
        _ => false,
    }
}
