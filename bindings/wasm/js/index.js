// The package in a browser: nothing works until the module has come, so `await init()` first.
export * from "./gumball.js";
export { default as init } from "./gumball.js";
export { GumballError } from "./host.js";
