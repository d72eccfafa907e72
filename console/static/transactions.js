export const title = () => "transactions";
export function show() {}
