export const title = () => "system";
export function show() {}
