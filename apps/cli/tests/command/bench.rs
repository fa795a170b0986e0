//! `gumball bench` measures every level and says so in a table and in JSON.

use crate::support::{Files, bytes, logits, succeeds};

#[test]
fn every_setting_is_measured_at_every_level() {
    let files = Files::new();
    let row = files.write("row.f32", &bytes(&logits(2000, 1)));
    let json: serde_json::Value =
        serde_json::from_str(&succeeds(&["bench", &row, "--vocab", "2000", "--json"])).unwrap();
    let measures = json.as_array().unwrap();
    assert_eq!(measures.len(), 6 * gumball_engine::Level::available().count());
    for measure in measures {
        let [token, floor, ratio] =
            ["token_us", "floor_us", "ratio"].map(|name| measure[name].as_f64().unwrap());
        assert!(token > 0.0 && floor > 0.0 && (ratio - token / floor).abs() < 1e-9, "{measure}");
        for (name, median) in [("token_us_quartiles", token), ("floor_us_quartiles", floor)] {
            let [low, high] = [0, 1].map(|place| measure[name][place].as_f64().unwrap());
            assert!(low <= median && median <= high, "{measure}");
        }
    }
    let table = succeeds(&["bench", &row, "--vocab", "2000", "--level", "scalar", "--top-k", "5"]);
    assert!(table.contains("scalar, us") && table.contains("as given") && table.contains("floor"), "{table}");
    assert!(table.contains("quartiles"), "{table}");
}
